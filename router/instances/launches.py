"""Which instances there are, on which host, and what they are connected by."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable

from slipstream.router.instances.early_instance import EarlyInstance
from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.host_link import HostLink
from slipstream.router.instances.host_messages import InstanceHello
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.instance_owner import PortObserver
from slipstream.router.instances.messages import InstanceEnd, StartInstance
from slipstream.router.instances.placement.host_choice import Placed, host_for
from slipstream.router.instances.spares import Spares

SPARE_GRACE_S = 10.0  # to finalize an instance that no one wants any more

log = logging.getLogger(__name__)


class Launches:
    """The table of instances. An instance leaves it when its host says that its process has ended, when its host comes
    again without it, or when its host and its own connection are both away for `away_s`.

    When the first host comes with instances of an earlier router, others may have some, too. For `gather_s` nothing is
    started, so that a launch finds its spare on whichever host it is. Nor is anything until `num_hosts` are there, so
    that the first one does not get what is to be spread."""

    def __init__(
        self, observer: PortObserver, memory_id: str, *, away_s: float, spare_s: float, gather_s: float, num_hosts: int
    ) -> None:
        self.hosts: dict[str, HostLink] = {}
        self.links: dict[str, InstanceLink] = {}  # by launch
        self.spares = Spares(spare_s)
        self._observer = observer
        self._memory_id = memory_id
        self._away_s = away_s
        self._gather_s = gather_s
        self._num_hosts = num_hosts
        self._has_gathered = False
        self._gathering: asyncio.TimerHandle | None = None
        self._waiting: dict[str, str] = {}  # launches without a host: the name of the one they want, or ""
        self._early: dict[str, EarlyInstance] = {}
        self._away_since: dict[str, float] = {}

    def num_instances(self, host: str) -> int:
        return sum(link.host == host for link in self.links.values())

    def add(self, link: InstanceLink, host: str) -> None:
        """Takes an equal instance of an earlier router, or starts one on this host, or on the one that `host_for` says;
        waits if there is none."""
        self.links[link.start.launch] = link
        self._waiting[link.start.launch] = host
        self._place_waiting()

    def stop_instance(self, link: InstanceLink, grace_s: float) -> None:
        launch = link.start.launch
        if self._waiting.pop(launch, None) is not None:
            end = InstanceEnd("it was stopped before a host could start it")
            asyncio.get_running_loop().call_soon(self.instance_ended, launch, end)
        elif link.host in self.hosts:
            self.hosts[link.host].stop(launch, grace_s)

    def host_came(self, host: HostLink, running: Iterable[StartInstance], now: float) -> None:
        """A host has connected. `running` are its instances."""
        earlier = self.hosts.get(host.name)
        self.hosts[host.name] = host
        if earlier is not None:
            earlier.connection.abort("the host has connected again")
        starts = {start.launch: start for start in running}
        self.spares.keep_only(host.name, starts)
        for launch, link in list(self.links.items()):
            if link.host == host.name and launch not in starts:
                self.instance_ended(
                    launch, InstanceEnd(f"host {host.name} does not run it any more", is_host_lost=True)
                )
        for start in starts.values():
            self._found(host, start, now)
        self._gather()
        self._place_waiting()
        self._stop_unwanted(now)
        self._observer.hosts_changed()

    def host_lost(self, host: HostLink, reason: str) -> None:
        if self.hosts.get(host.name) is host:
            log.warning("instance host %s: %s", host.name, reason)
            del self.hosts[host.name]
            self._observer.hosts_changed()

    def instance_came(self, hello: InstanceHello, connection: FrameConnection) -> None:
        link = self.links.get(hello.launch)
        if link is not None and link.host:
            self._connect(link, hello, connection)
            return
        early = EarlyInstance(hello, connection, self._early)
        connection.receiver = early
        self._early[hello.launch] = early
        if self.spares.is_stopped(hello.launch):
            early.finalize()

    def instance_ended(self, launch: str, end: InstanceEnd) -> None:
        link = self.links.pop(launch, None)
        self._waiting.pop(launch, None)
        self.spares.drop(launch)
        if link is not None:
            link.end(end)

    def check_absent(self, now: float) -> None:
        """Ends what has been away for too long, and stops what no one wants. To be called every few seconds."""
        for launch, link in list(self.links.items()):
            if link.is_connected or not link.host or link.host in self.hosts:
                self._away_since.pop(launch, None)
            elif now - self._away_since.setdefault(launch, now) >= self._away_s:
                del self._away_since[launch]
                self.instance_ended(launch, InstanceEnd(f"host {link.host} is gone", is_host_lost=True))
        self._stop_unwanted(now)

    def close(self) -> None:
        """Nothing is started any more."""
        if self._gathering is not None:
            self._gathering.cancel()

    def _gather(self) -> None:
        """A host has come: waits for others, once, or no longer."""
        are_all_there = len(self.hosts) >= self._num_hosts
        if self._gathering is not None and are_all_there and not len(self.spares):
            self._gathering.cancel()
            self._gathering = None
        if not self._has_gathered and (len(self.spares) or not are_all_there):
            self._has_gathered = True
            self._gathering = asyncio.get_running_loop().call_later(self._gather_s, self._gathered)

    def _found(self, host: HostLink, start: StartInstance, now: float) -> None:
        """The host runs this instance."""
        link = self.links.get(start.launch)
        if link is None:
            self.spares.found(start, host.name, now)
            return
        link.host = host.name
        if link.stop_grace_s is not None:
            host.stop(start.launch, link.stop_grace_s)
        self._connect_early(start.launch)

    def _place_waiting(self) -> None:
        for launch, wanted in list(self._waiting.items()):
            if not self._take_spare(self.links[launch]):
                host = self.hosts.get(wanted or self._host_for(self.links[launch].start))
                if host is not None and self._gathering is None:
                    del self._waiting[launch]
                    link = self.links[launch]
                    link.host = host.name
                    host.start(link.start)

    def _gathered(self) -> None:
        self._gathering = None
        self._place_waiting()

    def _take_spare(self, link: InstanceLink) -> bool:
        """Gives a launch an instance that runs already. It goes on under that one's launch id."""
        spare = self.spares.take(link.start)
        if spare is None:
            return False
        log.info("instance %s on host %s goes on", spare.start.name, spare.host)
        del self._waiting[link.start.launch], self.links[link.start.launch]
        link.start, link.host = spare.start, spare.host
        self.links[spare.start.launch] = link
        asyncio.get_running_loop().call_soon(self._connect_early, spare.start.launch)
        return True

    def _connect_early(self, launch: str) -> None:
        early, link = self._early.get(launch), self.links.get(launch)
        if early is None or link is None:
            return
        del self._early[launch]
        self._connect(link, early.hello, early.connection)
        early.connection.deliver(early.frames)

    def _connect(self, link: InstanceLink, hello: InstanceHello, connection: FrameConnection) -> None:
        link.connect(connection, is_ready=hello.is_ready, shares_memory=hello.memory_id == self._memory_id)

    def _stop_unwanted(self, now: float) -> None:
        for spare in self.spares.unwanted(now):
            launch = spare.start.launch
            log.info("instance %s on host %s is not wanted any more", spare.start.name, spare.host)
            if launch in self._early:
                self._early[launch].finalize()
            if spare.host in self.hosts:
                self.hosts[spare.host].stop(launch, SPARE_GRACE_S)

    def _host_for(self, start: StartInstance) -> str:
        placed = [placed_at(link.start, link.host) for link in self.links.values() if link.host]
        wanted = placed_at(start, "")
        return host_for(wanted.version, wanted.device, placed, self.hosts.keys()) or ""


def placed_at(start: StartInstance, host: str) -> Placed:
    device = start.device if start.kind == "KIND_GPU" else None
    return Placed(start.name, (start.model, start.version), device, host)


def new_launch_id() -> str:
    """Unique, and fit for file names."""
    return secrets.token_hex(12)
