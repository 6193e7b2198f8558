"""A repository that is served without a router's process: service, instance port and instance host in one event loop,
the models in processes of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.infer.ensembles.ensemble_version import EnsembleContext, EnsembleVersion
from slipstream.router.infer.repository_service import RepositoryService
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.instances.instance_port import InstancePort, InstancePortConfig
from slipstream.router.model_repository.backend_directory import BackendDirectory
from slipstream.router.model_repository.config.backends import EXECUTED_BY_INSTANCES
from slipstream.router.model_repository.explicit_loads import ExplicitLoads
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, SequenceFlags
from slipstream.router.tensors.infer_service import Submission
from slipstream.router.tensors.tensor import Tensor
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.instances.instance_host import InstanceHost

TIMEOUT_S = 20.0
TOKEN = "secret"
NO_TLS = LinkTlsConfig()
HEAD = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

def value_of(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

def response(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.asarray(value, np.int32))])

"""


@dataclass
class Answers:
    """ResponseReceiver: what came, as numbers of the output OUT."""

    values: list[list[int]] = field(default_factory=list)
    error: InferError | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        assert not self.ended.is_set()
        if response.outputs:
            self.values.append(np.frombuffer(response.outputs[0].view, np.int32).tolist())
        if response.release is not None:
            response.release()
        if is_final:
            self.ended.set()

    def complete(self) -> None:
        assert not self.ended.is_set()
        self.ended.set()

    def fail(self, error: InferError) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()


@dataclass
class RepositoryLab:
    """`service`, `repository` and `port` are those of the latest router (`listen`)."""

    folder: Path
    pool: RegionPool
    config: RepositoryConfig
    path: str  # of the port
    sockets: Sequence[socket.socket] = ()  # of the port, for hosts in other networks
    tls: LinkTlsConfig = NO_TLS  # on these
    service: TensorService = field(init=False)
    repository: RepositoryService = field(init=False)
    port: InstancePort = field(init=False)
    hosts: dict[str, tuple[InstanceHost, asyncio.Task[None]]] = field(default_factory=dict)
    num_held: int = 0  # requests whose inputs have not been given back

    def write(self, name: str, config: str, code: str, version: str = "1") -> None:
        """Writes a model. `code` follows HEAD; without it, the model is an ensemble."""
        folder = self.folder / name / version
        folder.mkdir(parents=True, exist_ok=True)
        kind = 'backend: "python"' if code else 'platform: "ensemble"'
        (self.folder / name / "config.pbtxt").write_text(f"{kind} {config}")
        if code:
            (folder / "model.py").write_text(HEAD + code)

    def submit(self, model: str, *values: int, **settings: Any) -> tuple[Submission, Answers]:
        """A request with the input IN. Raises InferError."""
        answers = Answers()
        data = np.asarray(values, np.int32).tobytes()
        batched = self.service.spec_of(model).max_batch_size > 0
        shape = (1, len(values)) if batched else (len(values),)

        def release() -> None:
            self.num_held -= 1

        self.num_held += 1
        inputs = [Tensor("IN", "INT32", shape, data)]
        return self.service.submit(InferRequest(model, inputs=inputs, release=release, **settings), answers), answers

    async def infer(self, model: str, *values: int, **settings: Any) -> list[list[int]]:
        """All responses to a request. Raises InferError."""
        _, answers = self.submit(model, *values, **settings)
        async with asyncio.timeout(TIMEOUT_S):
            await answers.ended.wait()
        if answers.error is not None:
            raise answers.error
        return answers.values

    async def in_sequence(self, model: str, name: int, value: int, *, start: bool = False, end: bool = False) -> int:
        return (await self.infer(model, value, sequence=SequenceFlags(name, start, end)))[0][0]

    def hosts_changed(self) -> None:
        for _, runtime in self.service.runtimes():
            if runtime.instances is not None:
                runtime.instances.spread()

    def add_host(self, name: str) -> None:
        """Instances may run there from now on."""
        host = InstanceHost(InstanceHostConfig(f"unix:{self.path}", TOKEN, name, logs=str(self.folder.parent / name)))
        self.hosts[name] = host, asyncio.create_task(host.run())

    async def remove_host(self, name: str) -> None:
        """Ends its instances as well."""
        host, running = self.hosts.pop(name)
        host.stop(1.0)
        await running

    async def listen(self) -> None:
        """The port and the repository, of the first router or of the next one."""
        self.service = TensorService()
        away_s = 2.0 if self.sockets else 10.0
        config = InstancePortConfig(TOKEN, self.path, away_s=away_s, num_hosts=self.config.hosts, tls=self.tls)
        self.port = InstancePort(config, self.pool, self, self.sockets)
        further = self.config.backend_directory
        options = ReadOptions(
            backends=EXECUTED_BY_INSTANCES | {""},
            backend_directory=BackendDirectory(Path(further) if further is not None else None),
        )
        models = ModelRepository((str(self.folder),), options)
        cache = ResponseCache.of_size(self.config.cache_bytes)
        factories = {"": partial(EnsembleVersion, EnsembleContext(self.service, cache))}
        loads = ExplicitLoads.beside(Path(self.path))
        self.repository = RepositoryService(
            self.config, models, self.service, self.port, loads, factories=factories, cache=cache
        )
        await self.port.start()


@asynccontextmanager
async def repository_lab(
    tmp_path: Path,
    models: Mapping[str, tuple[str, str]],
    *,
    sockets: Sequence[socket.socket] = (),
    tls: LinkTlsConfig = NO_TLS,
    **settings: Any,
) -> AsyncIterator[RepositoryLab]:
    """`models` are configurations and code of Python models, by name, beside what is in the folder `models` already.
    With `sockets`, hosts come from elsewhere. At the end nothing of them may be left."""
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    config = RepositoryConfig((str(folder),), **{"control_mode": "explicit", "load_models": ("*",), **settings})
    pool, path = RegionPool(64 << 20), str(tmp_path / "port")
    lab = RepositoryLab(folder, pool, config, path, sockets, tls)
    for name, (text, code) in models.items():
        lab.write(name, text, code)
    await lab.listen()
    for number in range(0 if sockets else config.hosts):
        lab.add_host("abcd"[number])
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await lab.repository.start()
        yield lab
        async with asyncio.timeout(TIMEOUT_S):
            await lab.repository.close()
        assert (lab.num_held, lab.repository.num_running) == (0, 0)
        ledger = lab.port.ledger
        assert (ledger.num_launches, ledger.num_requests, ledger.num_lent) == (0, 0, 0)
        assert pool.usage.num_leases == 0
    finally:
        await asyncio.gather(*map(lab.remove_host, list(lab.hosts)))
        await lab.port.stop()
        pool.close()
