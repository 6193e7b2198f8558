"""A router and an instance host that run on the event loop of a thread of this process."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from slipstream.cluster.in_process.interface.errors import InternalError
from slipstream.cluster.in_process.interface.options import Options
from slipstream.cluster.in_process.language.local_pools import EmbeddedRouterPort, LocalPools
from slipstream.cluster.in_process.language.worker_plan import WorkerContact
from slipstream.cluster.in_process.running.server_log import logging_as
from slipstream.cluster.models.repository_pools import RepositoryPools
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.process.background_task import cancel_and_wait
from slipstream.router.router import Router
from slipstream.router.tensor_models import TensorModels
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.instances.instance_host import InstanceHost

PYTHON_RUNTIME = "python-runtime"  # the interpreter of models, as in Triton's --backend-config
FINALIZE_S = 10.0  # in which instances may finalize
PREFIX = "slipstream-"  # of the folder of a server


class EmbeddedRouter:
    """Life cycle: `start`, `wait_loaded`, `stop`, all on one event loop. Instances write to the output of this
    process."""

    def __init__(self, options: Options, config: RepositoryConfig) -> None:
        self._options = options
        self._config = config
        self._cleanup = AsyncExitStack()
        self._router: Router

    @property
    def tensors(self) -> TensorModels:
        assert self._router.tensors is not None, "it has a repository"
        return self._router.tensors

    async def start(self) -> None:
        """Raises OSError, ValueError."""
        async with AsyncExitStack() as cleanup:
            cleanup.enter_context(logging_as(self._options))
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            token, path = secrets.token_hex(16), folder / "instances"
            self._router = Router(RouterConfig(), (), token, repository=self._config, instances_path=path)
            addresses = await self._router.start(is_embedded=True)
            cleanup.push_async_callback(self._router.stop)
            contact = WorkerContact(addresses.workers, token)
            pools = LocalPools(self._router, self._config, contact, folder)
            cleanup.push_async_callback(pools.stop)
            wanted = asyncio.create_task(RepositoryPools(EmbeddedRouterPort(self._router), pools).run())
            cleanup.push_async_callback(cancel_and_wait, wanted)
            self.tensors.repository.exit_timeout_s = self._options.exit_timeout
            python = self._config.backend_config.get("python", {}).get(PYTHON_RUNTIME, "")
            host = InstanceHost(InstanceHostConfig(f"unix:{path}", token, "in-process", python=python))
            running = asyncio.create_task(host.run(), name="instance host")
            cleanup.push_async_callback(self._stop_host, host, running)
            cleanup.push_async_callback(self._unload)
            self._cleanup = cleanup.pop_all()

    async def wait_loaded(self) -> None:
        """Until all models of the start have been tried. Raises what ends the server: InferError, RepositoryError,
        ValueError."""
        await self._router.wait_loaded()

    async def stop(self) -> None:
        """Ends all. Safe to call twice. Raises InternalError if requests had to be cut off."""
        await self._cleanup.aclose()

    async def _unload(self) -> None:
        """Takes no new requests, and lets the others end."""
        tensors = self.tensors
        tensors.stop_admission()
        await tensors.repository.close()
        if tensors.repository.num_running:
            raise InternalError("Exit timeout expired. Exiting immediately.")

    async def _stop_host(self, host: InstanceHost, running: asyncio.Task[None]) -> None:
        """Lets the instances finalize, unless they have had their time."""
        host.stop(0.0 if self.tensors.repository.num_running else FINALIZE_S)
        await running
