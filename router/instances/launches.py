"""Which instances there are, on which host, and what they are connected by."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.frames.frame_reader import FrameError, Json, Payload
from slipstream.router.instances.host_link import HostLink
from slipstream.router.instances.host_messages import InstanceHello
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.instance_owner import InstanceOwner, PortObserver
from slipstream.router.instances.messages import InstanceEnd, StartInstance
from slipstream.router.instances.unowned_instance import UnownedInstance

UNOWNED_GRACE_S = 10.0  # for an instance that no one takes over from an earlier router

MakeLink = Callable[[StartInstance, InstanceOwner], InstanceLink]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Early:
    """An instance that has connected before its host has said that it runs. It is the connection's receiver."""

    hello: InstanceHello
    connection: FrameConnection
    early: dict[str, _Early]

    def received(self, head: Json, payload: Payload) -> None:
        raise FrameError(f"{head['type']!r} came before any command")

    def lost(self, reason: str) -> None:
        """It connects again by itself."""
        if self.early.get(self.hello.launch) is self:
            del self.early[self.hello.launch]


class Launches:
    """The table of instances. An instance leaves it when its host says that its process has ended, when its host comes
    again without it, or when its host and its own connection are both away for `away_s`."""

    def __init__(self, observer: PortObserver, memory_id: str, away_s: float) -> None:
        self.hosts: dict[str, HostLink] = {}
        self.links: dict[str, InstanceLink] = {}  # by launch
        self._observer = observer
        self._memory_id = memory_id
        self._away_s = away_s
        self._waiting: dict[str, str] = {}  # launches without a host: the name of the one they want, or ""
        self._early: dict[str, _Early] = {}
        self._away_since: dict[str, float] = {}

    def num_instances(self, host: str) -> int:
        return sum(link.host == host for link in self.links.values())

    def add(self, link: InstanceLink, host: str) -> None:
        """Starts it on this host, or on that with the fewest; waits if there is none."""
        self.links[link.start.launch] = link
        self._waiting[link.start.launch] = host
        self._start_waiting()

    def stop_instance(self, link: InstanceLink, grace_s: float) -> None:
        launch = link.start.launch
        if self._waiting.pop(launch, None) is not None:
            end = InstanceEnd("it was stopped before a host could start it")
            asyncio.get_running_loop().call_soon(self.instance_ended, launch, end)
        elif link.host in self.hosts:
            self.hosts[link.host].stop(launch, grace_s)

    def host_came(self, host: HostLink, running: Iterable[StartInstance], make_link: MakeLink) -> None:
        """A host has connected. `running` are its instances."""
        earlier = self.hosts.get(host.name)
        self.hosts[host.name] = host
        if earlier is not None:
            earlier.connection.abort("the host has connected again")
        starts = {start.launch: start for start in running}
        for launch, link in list(self.links.items()):
            if link.host == host.name and launch not in starts:
                self.instance_ended(launch, InstanceEnd(f"host {host.name} does not run it any more"))
        for launch, start in starts.items():
            self._found(host, start, make_link)
            early = self._early.pop(launch, None)
            if early is not None:
                self.instance_came(early.hello, early.connection)
        self._start_waiting()
        self._observer.hosts_changed()

    def host_lost(self, host: HostLink, reason: str) -> None:
        if self.hosts.get(host.name) is host:
            log.warning("instance host %s: %s", host.name, reason)
            del self.hosts[host.name]
            self._observer.hosts_changed()

    def instance_came(self, hello: InstanceHello, connection: FrameConnection) -> None:
        link = self.links.get(hello.launch)
        if link is not None and link.host:
            link.connect(connection, is_ready=hello.is_ready, shares_memory=hello.memory_id == self._memory_id)
        else:
            early = _Early(hello, connection, self._early)
            connection.receiver = early
            self._early[hello.launch] = early

    def instance_ended(self, launch: str, end: InstanceEnd) -> None:
        link = self.links.pop(launch, None)
        self._waiting.pop(launch, None)
        if link is not None:
            link.end(end)

    def check_absent(self, now: float) -> None:
        """Ends what has been away for too long. To be called every few seconds."""
        for launch, link in list(self.links.items()):
            if link.is_connected or not link.host or link.host in self.hosts:
                self._away_since.pop(launch, None)
            elif now - self._away_since.setdefault(launch, now) >= self._away_s:
                del self._away_since[launch]
                self.instance_ended(launch, InstanceEnd(f"host {link.host} is gone"))

    def _found(self, host: HostLink, start: StartInstance, make_link: MakeLink) -> None:
        """The host runs this instance."""
        launch = start.launch
        link = self.links.get(launch)
        if link is None:
            owner = self._observer.found_running(start)
            link = make_link(start, owner or UnownedInstance())
            link.stop_grace_s = None if owner is not None else UNOWNED_GRACE_S
            self.links[launch] = link
        link.host = host.name
        if link.stop_grace_s is not None:
            host.stop(launch, link.stop_grace_s)

    def _start_waiting(self) -> None:
        for launch, wanted in list(self._waiting.items()):
            host = self.hosts.get(wanted) if wanted else self._emptiest()
            if host is not None:
                del self._waiting[launch]
                link = self.links[launch]
                link.host = host.name
                host.start(link.start)

    def _emptiest(self) -> HostLink | None:
        return min(self.hosts.values(), key=lambda host: self.num_instances(host.name), default=None)


def new_launch_id() -> str:
    """Unique, and fit for file names."""
    return secrets.token_hex(12)
