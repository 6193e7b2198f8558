"""The instance host: it obeys the router."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from slipstream.router.instances.host_messages import HostHello, HostWelcome, end_head, host_hello_head, usage_head
from slipstream.router.instances.messages import InstanceEnd, StartInstance
from slipstream.router.tensor_memory.shared_file import memory_id
from slipstream.router.tensor_memory.stale_files import remove_files_of_the_dead
from slipstream.router.tls.tls_files import TlsFileError
from slipstream.workers.instances.backend_launcher import BackendLauncher
from slipstream.workers.instances.host_config import InstanceHostConfig, router_address
from slipstream.workers.instances.instance_table import InstanceTable
from slipstream.workers.instances.launch_command import Launcher
from slipstream.workers.instances.process_usage import UsageReader
from slipstream.workers.instances.python_launcher import PythonLauncher
from slipstream.workers.instances.router_relay import RouterRelay
from slipstream.workers.instances.router_session import RouterSession, connect

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 0.1  # the models of a router that comes back wait for it

log = logging.getLogger(__name__)


class InstanceHost:
    """Starts and watches the instances of one machine. `is_connected` is set while a router has welcomed it. While the
    router is away, instances go on, and what has ended meanwhile is reported to the next one.

    `launcher` makes the instances' commands; None: those of all backends."""

    def __init__(self, config: InstanceHostConfig, launcher: Launcher | None = None) -> None:
        self._config = config
        logs, cache = (Path(folder) if folder else None for folder in (config.logs, config.cache))
        launcher = launcher or BackendLauncher(PythonLauncher(cache, config.python))
        self._table = InstanceTable(launcher, logs, self._report)
        self._session: RouterSession | None = None
        self._unreported: dict[str, tuple[StartInstance, InstanceEnd]] = {}
        self._router = router_address(config.router)
        self._relay = RouterRelay(self._router, config.router_tls) if self._uses_tls else None
        self._instances_address = config.router
        self._grace_s = 0.0
        self._usage = UsageReader()
        self._usage_s = 0.0  # how often the router wants to know
        self._warning = ""
        self._stopping = asyncio.Event()
        self.is_connected = asyncio.Event()

    @property
    def _uses_tls(self) -> bool:
        return self._config.router_tls.is_on and not self._router.path

    @property
    def num_instances(self) -> int:
        return len(self._table)

    async def run(self) -> None:
        """Connects to the router, again and again, and obeys it until `stop`. Before it returns all instances have
        ended. Raises HostRefused, OSError if the folder for logs cannot be made, and TlsFileError."""
        await asyncio.to_thread(self._prepare)
        async with AsyncExitStack() as stack:
            if self._relay is not None:
                self._instances_address = await stack.enter_async_context(self._relay.listening())
            await self._serve_router()

    async def _serve_router(self) -> None:
        logs = asyncio.create_task(self._table.keep_logs_small(), name="logs of the instances")
        try:
            await self._obey()
        finally:
            logs.cancel()
            self._usage.close()
            self._table.stop_all(self._grace_s)
            await self._table.wait_empty()
            if self._session is not None:
                self._session.connection.close()

    def stop(self, grace_s: float = 10.0) -> None:
        """Lets the instances finalize, kills those that have not ended after `grace_s`, and ends `run`. For the event
        loop's thread; a second call kills at once."""
        if self._stopping.is_set():
            self._table.stop_all(0.0)
        self._grace_s = grace_s
        self._stopping.set()

    def welcomed(self, welcome: HostWelcome) -> None:
        """For the session."""
        log.info("router %d has welcomed instance host %s", welcome.epoch, self._config.name)
        self._usage_s = welcome.usage_s
        self._warning = ""
        if self._relay is None:
            self._instances_address = welcome.address
        self.is_connected.set()
        unreported, self._unreported = self._unreported, {}
        for start, end in unreported.values():
            self._report(start, end)

    def start(self, start: StartInstance, secret: str) -> None:
        """For the session."""
        if not self._stopping.is_set():
            self._table.start(start, secret, self._instances_address)

    def stop_instance(self, launch: str, grace_s: float) -> None:
        """For the session."""
        self._table.stop(launch, grace_s)

    def _prepare(self) -> None:
        if self._uses_tls:
            self._config.router_tls.client_context()  # files that are wrong from the start are not waited for
        if self._config.logs:
            Path(self._config.logs).mkdir(parents=True, exist_ok=True)
        num_removed = remove_files_of_the_dead()
        if num_removed:
            log.info("removed %d files of dead processes from shared memory", num_removed)

    async def _obey(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait(), name="stop of the instance host")
        retry_s = FIRST_RETRY_S
        try:
            while not stopping.done():
                if await self._serve(stopping):
                    retry_s = FIRST_RETRY_S
                await asyncio.wait([stopping], timeout=retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
        finally:
            stopping.cancel()

    async def _serve(self, stopping: asyncio.Future[Any]) -> bool:
        """One connection, until it is lost or the host stops. Returns whether a router has welcomed the host. Raises
        HostRefused."""
        try:
            session = await connect(self._router, self._config.router_tls, self)
        except (ssl.SSLError, TlsFileError) as error:
            self._warn(f"no connection to the router at {self._config.router}: {error}")
            return False
        except OSError as error:
            log.debug("no router at %s: %s", self._config.router, error)
            return False
        self._session = session
        session.connection.send(host_hello_head(self._hello()))
        usage = asyncio.create_task(self._tell_usage(session), name="usage of the instances")
        waited: list[asyncio.Future[Any]] = [session.ended, stopping]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            usage.cancel()
        if not session.ended.done():
            return True  # the host stops; the router hears of its instances' ends
        self._session = None
        self.is_connected.clear()
        self._warn(f"the router was lost: {session.ended.result()}")
        return session.is_welcome

    async def _tell_usage(self, session: RouterSession) -> None:
        """Says what the processes take, as often as the router wants to know, until it is cancelled."""
        await self.is_connected.wait()
        while self._usage_s > 0:
            report = await asyncio.to_thread(self._usage.read, {"": os.getpid(), **self._table.pids})
            session.connection.send(usage_head(report))
            await asyncio.sleep(self._usage_s)

    def _warn(self, text: str) -> None:
        """Once for each reason, however often it is tried."""
        if text != self._warning:
            self._warning = text
            log.warning("%s", text)

    def _hello(self) -> HostHello:
        config = self._config
        ended = (start for start, _ in self._unreported.values())
        running = (*self._table.running, *ended)
        return HostHello(config.token, config.name, config.node_ip, memory_id(), os.getpid(), running)

    def _report(self, start: StartInstance, end: InstanceEnd) -> None:
        if self._session is not None and self._session.is_welcome:
            self._session.connection.send(end_head(start.launch, end))
        else:
            self._unreported[start.launch] = start, end
