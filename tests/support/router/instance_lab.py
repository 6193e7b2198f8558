"""An instance port with its pool, and owners that write down what they hear."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.router.instances.frames.frame_reader import Json
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.instance_port import InstancePort, InstancePortConfig
from slipstream.router.instances.launches import new_launch_id
from slipstream.router.instances.messages import (
    ControlCall,
    Executed,
    InstanceEnd,
    InstanceResponse,
    LogLine,
    ModelCall,
    Responded,
    StartInstance,
)
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensor_memory.shared_file import memory_id
from slipstream.router.tensors.infer_error import InferErrorCode
from slipstream.router.tls.link_tls import LinkTlsConfig
from tests.support.router.scripted_instance import OTHER_MEMORY, TIMEOUT_S, TOKEN, Peer, host_peer, instance_peer

POOL_BYTES = 64 << 20
NO_TLS = LinkTlsConfig()


class RecordingOwner:
    """Events as (name, argument), in order."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def next(self, name: str) -> Any:
        """The argument of the next event, which must have this name."""
        async with asyncio.timeout(TIMEOUT_S):
            event, argument = await self.events.get()
        assert event == name, (event, argument)
        return argument

    def connected(self, *, is_ready: bool) -> None:
        self.events.put_nowait(("connected", is_ready))

    def disconnected(self) -> None:
        self.events.put_nowait(("disconnected", None))

    def completed(self, config: Json) -> None:
        self.events.put_nowait(("completed", config))

    def ready(self) -> None:
        self.events.put_nowait(("ready", None))

    def failed(self, error: str, code: InferErrorCode) -> None:
        self.events.put_nowait(("failed", error))

    def executed(self, result: Executed) -> None:
        self.events.put_nowait(("executed", result))

    def responded(self, n: int, response: InstanceResponse | None, *, is_final: bool) -> None:
        self.events.put_nowait(("responded", Responded(n, response, is_final)))

    def called(self, call: ModelCall) -> None:
        self.events.put_nowait(("called", call))

    def call_cancelled(self, call: int) -> None:
        self.events.put_nowait(("call_cancelled", call))

    def controlled(self, call: ControlCall) -> None:
        self.events.put_nowait(("controlled", call))

    def logged(self, line: LogLine) -> None:
        self.events.put_nowait(("logged", line))

    def metrics_changed(self, families: list[Json]) -> None:
        self.events.put_nowait(("metrics_changed", families))

    def ended(self, end: InstanceEnd) -> None:
        self.events.put_nowait(("ended", end))


@dataclass
class RecordingObserver:
    hosts: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    def hosts_changed(self) -> None:
        self.hosts.put_nowait(None)


@dataclass
class Lab:
    port: InstancePort
    pool: RegionPool
    observer: RecordingObserver
    path: str
    peers: list[Peer] = field(default_factory=list)

    async def host(self, name: str = "a", running: tuple[StartInstance, ...] = ()) -> Peer:
        """A host that was welcomed."""
        peer = await host_peer(self.path, name, running)
        self.peers.append(peer)
        await peer.expect("host_welcome")
        return peer

    async def instance(self, launch: str, memory: str = OTHER_MEMORY, state: str = "new") -> Peer:
        peer = await instance_peer(self.path, launch, memory, state)
        self.peers.append(peer)
        return peer

    async def connected_instance(self, *, shares_memory: bool = False) -> tuple[InstanceLink, RecordingOwner, Peer]:
        """An instance on a new host, whose owner has heard that it is connected."""
        host = await self.host()
        owner = RecordingOwner()
        link = self.port.launch(start_of(), owner)
        launch = (await host.expect("start"))["launch"]
        peer = await self.instance(launch, memory_id() if shares_memory else OTHER_MEMORY)
        assert await owner.next("connected") is False
        return link, owner, peer


def start_of(name: str = "m_0_0", folder: Path = Path("/models/m"), revision: str = "") -> StartInstance:
    folders = str(folder), str(folder / "1")
    return StartInstance(new_launch_id(), name, "m", "1", "python", *folders, "model.py", revision=revision)


@asynccontextmanager
async def instance_lab(
    folder: Path,
    sockets: Sequence[socket.socket] = (),
    away_s: float = 10.0,
    spare_s: float = 60.0,
    gather_s: float = 0.0,
    num_hosts: int = 1,
    tls: LinkTlsConfig = NO_TLS,
) -> AsyncIterator[Lab]:
    """At the end no lease may be left."""
    observer = RecordingObserver()
    path = str(folder / "instances.sock")
    config = InstancePortConfig(
        TOKEN, path, away_s=away_s, spare_s=spare_s, gather_s=gather_s, num_hosts=num_hosts, tls=tls
    )
    with RegionPool(POOL_BYTES) as pool:
        lab = Lab(
            InstancePort(config, pool, observer, sockets),
            pool,
            observer,
            path,
        )
        await lab.port.start()
        try:
            yield lab
        finally:
            for peer in lab.peers:
                await peer.close()
            await lab.port.stop()
        assert pool.usage.num_leases == 0
