"""Where instance hosts and instances connect."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.greeting import MAX_HELLO_BYTES, Greeting
from slipstream.router.instances.host_link import HostLink
from slipstream.router.instances.host_messages import (
    HostHello,
    HostWelcome,
    InstanceHello,
    ProcessUsage,
    host_welcome_head,
)
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.instance_owner import InstanceOwner, PortObserver
from slipstream.router.instances.launches import Launches
from slipstream.router.instances.messages import StartInstance
from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.process.listening import listening_at_path, remove_path
from slipstream.router.tensor_memory.mapped_files import MappedFiles
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensor_memory.shared_file import memory_id
from slipstream.router.tensor_memory.stale_files import remove_files_of_the_dead
from slipstream.router.tls.link_tls import LinkTlsConfig

BACKLOG = 512
BEAT_S = 5.0
USAGE_S = 5.0  # how often hosts say what their processes take


@dataclass(frozen=True, slots=True)
class InstancePortConfig:
    """`unix_path` "": no Unix socket. `token` is the cluster's worker token. An instance whose host and connection are
    both away has ended after `away_s`. Instances of an earlier router that no launch wants are stopped after
    `spare_s`. For `gather_s` after the first host has come, nothing new is started where it has some, or where fewer
    than `num_hosts` are there. `tls` is for TCP."""

    token: str
    unix_path: str = ""
    max_frame_bytes: int = 1 << 34
    away_s: float = 10.0
    spare_s: float = 120.0
    gather_s: float = 2.0
    num_hosts: int = 1
    tls: LinkTlsConfig = field(default_factory=LinkTlsConfig)


@dataclass(frozen=True, slots=True)
class HostStatus:
    """`memory_id` names the memory that hosts share; `num_instances` were started there and have not ended."""

    name: str
    node_ip: str
    memory_id: str
    num_instances: int


@dataclass(frozen=True, slots=True)
class HostUsage:
    """What the process of a host takes (None: it has not said so yet), those of its instances, and the GPUs of its
    machine."""

    name: str
    own: ProcessUsage | None
    instances: tuple[tuple[StartInstance, ProcessUsage], ...]
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceLedger:
    """All but `num_hosts` return to zero when no model is loaded; `num_requests` and `num_lent` when none runs.
    `num_spares`: instances of an earlier router. `num_lent`: responses to calls that an instance has not released."""

    num_hosts: int
    num_launches: int
    num_spares: int
    num_connected: int
    num_requests: int
    num_lent: int


class InstancePort:
    """Listens on the Unix socket and on `sockets` (TCP, bound or listening; the caller keeps them over a restart)."""

    def __init__(
        self,
        config: InstancePortConfig,
        pool: RegionPool,
        observer: PortObserver,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        """Raises TlsFileError."""
        if not config.token:
            raise ValueError("instance hosts need a secret token: it is empty")
        self._config = config
        self._pool = pool
        self._sockets = sockets
        self.tls = config.tls.server_tls("the certificate for instances") if config.tls.is_on else None
        self._epoch = time.time_ns()
        self._files = MappedFiles()
        self._launches = Launches(
            observer,
            memory_id(),
            away_s=config.away_s,
            spare_s=config.spare_s,
            gather_s=config.gather_s,
            num_hosts=config.num_hosts,
        )
        self._servers: list[asyncio.Server] = []
        self._connections: set[FrameConnection] = set()
        self._beat: asyncio.TimerHandle | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Removes what killed processes have left in shared memory, and listens. Raises OSError if it cannot."""
        await asyncio.to_thread(remove_files_of_the_dead)
        loop = asyncio.get_running_loop()
        if self._config.unix_path:
            sock = listening_at_path(self._config.unix_path, BACKLOG)
            self._servers.append(await loop.create_unix_server(self._connection, sock=sock, backlog=BACKLOG))
        tls = self.tls.context if self.tls is not None else None
        for sock in self._sockets:
            self._servers.append(await loop.create_server(self._connection, sock=sock, backlog=BACKLOG, ssl=tls))
        self._on_beat()

    async def stop(self) -> None:
        """Closes all connections and removes the Unix socket; owners hear nothing any more. Hosts and instances stay,
        for the next router. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._beat is not None:
            self._beat.cancel()
        self._launches.close()
        for server in self._servers:
            server.close()
        if self._config.unix_path and self._servers:
            remove_path(self._config.unix_path)
        for connection in list(self._connections):
            connection.leave("the router stops")
        for server in self._servers:
            await server.wait_closed()

    @property
    def hosts(self) -> list[HostStatus]:
        """Those that are connected."""
        return [
            HostStatus(host.name, host.node_ip, host.memory_id, self._launches.num_instances(host.name))
            for host in self._launches.hosts.values()
        ]

    @property
    def usage(self) -> list[HostUsage]:
        """What the processes of connected hosts take, as they have said last."""
        return [self._usage_of(host) for host in self._launches.hosts.values()]

    @property
    def host_names(self) -> Collection[str]:
        """Of those that are connected."""
        return self._launches.hosts.keys()

    @property
    def ledger(self) -> InstanceLedger:
        links = self._launches.links.values()
        return InstanceLedger(
            len(self._launches.hosts),
            len(links),
            len(self._launches.spares),
            sum(link.is_connected for link in links),
            sum(link.num_requests for link in links),
            sum(link.num_lent for link in links),
        )

    def launch(self, start: StartInstance, owner: InstanceOwner, host: str = "") -> InstanceLink:
        """Starts an instance on this host; "": so that those of its version are spread. Without such a host it waits
        for one. If an instance runs already that an earlier router has started in the same way, with the same
        `revision`, this is taken instead. `InstanceOwner.connected` or `ended` follows."""
        link = InstanceLink(start, owner, self._launches, self._pool, self._files)
        self._launches.add(link, host)
        return link

    def host_came(self, hello: HostHello, connection: FrameConnection) -> None:
        """For `Greeting`."""
        connection.allow_frames_of(self._config.max_frame_bytes)
        host = HostLink(hello, connection, self._config.token, self._launches)
        connection.receiver = host
        address = connection.local_address or f"unix:{self._config.unix_path}"
        connection.send(host_welcome_head(HostWelcome(address, self._epoch, USAGE_S)))
        self._launches.host_came(host, hello.running, time.monotonic())

    def instance_came(self, hello: InstanceHello, connection: FrameConnection) -> None:
        """For `Greeting`."""
        connection.allow_frames_of(self._config.max_frame_bytes)
        self._launches.instance_came(hello, connection)

    def _usage_of(self, host: HostLink) -> HostUsage:
        links = self._launches.links
        processes = host.usage.processes
        instances = [(links[launch].start, usage) for launch, usage in processes.items() if launch in links]
        return HostUsage(host.name, processes.get(""), tuple(instances), host.usage.gpus)

    def _connection(self) -> FrameConnection:
        return FrameConnection(self._greeting, MAX_HELLO_BYTES, self._connections)

    def _greeting(self, connection: FrameConnection) -> Greeting:
        return Greeting(connection, self._config.token, self)

    def check_absent(self) -> None:
        """Ends instances that have been away for too long. The port does so every few seconds by itself."""
        self._launches.check_absent(time.monotonic())

    def _on_beat(self) -> None:
        self.check_absent()
        self._pool.trim()
        if self.tls is not None:
            self.tls.look()
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._on_beat)
