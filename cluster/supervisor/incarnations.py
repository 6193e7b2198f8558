"""What the members do between one start of their processes and their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeVar

from slipstream.cluster.supervisor.group_monitor import GroupMonitor
from slipstream.cluster.supervisor.managed import Managed, ManagedGroup, ManagedInstanceHost
from slipstream.cluster.supervisor.members.members import Group, Member
from slipstream.cluster.supervisor.router_monitor import RouterMonitor
from slipstream.cluster.supervisor.supervised_members import SupervisedMembers
from slipstream.router.process.addresses import Addresses, Endpoint, RepositoryAddresses

M = TypeVar("M", bound=Member)

PENDING_AFTER_S = 1.0


class Incarnations:
    """Each of `of_router`, `of_group` and `of_instance_host` runs one incarnation of a member, and returns the reason
    for its end.

    All processes are launched concurrently. Only their connection has an order: groups and instance hosts serve once
    the router listens. A router that died comes back at the same ports, where those that keep trying find it.
    """

    def __init__(self, members: SupervisedMembers) -> None:
        self._members = members
        self._group_monitor = GroupMonitor(members.router, members.serves, members.note)
        self._router_monitor = RouterMonitor(members.router, members.note)
        self._worker_port: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._instance_port: asyncio.Future[RepositoryAddresses] = asyncio.get_running_loop().create_future()
        self.all_launched = asyncio.Event()

    async def of_router(self) -> str:
        managed = self._members.router
        await self._launch(managed)
        addresses, port = await managed.member.serve(self._members.expected)
        self._tell_groups(port)
        self._tell_instance_hosts(addresses)
        self._members.observer.listening(addresses)
        self._members.serves(managed, "listening")
        await managed.expect(self._members.expected)  # the numbers may have changed while the router started
        death, silence = (
            asyncio.ensure_future(end) for end in (managed.member.death(), self._router_monitor.silence())
        )
        try:
            done, _ = await asyncio.wait([death, silence], return_when=asyncio.FIRST_COMPLETED)
            return await (death if death in done else silence)
        finally:
            death.cancel()
            silence.cancel()

    async def of_group(self, managed: ManagedGroup) -> str:
        group = managed.member
        managed.asked_epoch = 0
        await group.reserve()
        waiting = asyncio.create_task(self._tell_if_pending(managed))
        try:
            await self._launch(managed)
        finally:
            waiting.cancel()
        if all(other.member.locations for other in self._members.groups.values()):
            self.all_launched.set()
        # At the start, groups wait for each other, so that all know how many share a host and take only their share of
        # its cores.
        await self.all_launched.wait()
        while True:
            reason = await self._serve_as_group(managed)
            if not managed.is_moving or not await group.has_left():
                return reason
            managed.pending_change, managed.asked_epoch = None, 0
            managed.ready.clear()
            managed.policy.moved()
            self._members.note(managed, "freeing", f"goes on with {managed.status.model}")

    async def _serve_as_group(self, managed: ManagedGroup) -> str:
        """Returns the reason why the group does not serve its model any more."""
        group = managed.member
        await group.serve(await asyncio.shield(self._worker_port), self._num_ranks_beside(group))
        death = asyncio.ensure_future(group.death())
        follow = asyncio.ensure_future(self._group_monitor.follow(managed))
        try:
            await asyncio.wait([death, follow], return_when=asyncio.FIRST_COMPLETED)
            return await death
        finally:
            death.cancel()
            follow.cancel()

    async def of_instance_host(self, managed: ManagedInstanceHost) -> str:
        host = managed.member
        await self._launch(managed)
        router = await asyncio.shield(self._instance_port)
        await host.serve(router, self._members.router.member.node_id)
        self._members.serves(managed, "connected")
        return await host.death()

    async def _launch(self, managed: Managed[M]) -> None:
        before = f", after: {managed.last_death}" if managed.last_death else ""
        self._members.note(managed, "starting", f"starting its processes{before}")
        await managed.member.launch()
        managed.status.pids = managed.member.pids
        self._members.observer.launched(managed.status)

    async def _tell_if_pending(self, managed: ManagedGroup) -> None:
        room = asyncio.ensure_future(managed.member.room())
        try:
            await asyncio.wait([room], timeout=PENDING_AFTER_S)
            if room.done():
                return
            self._members.note(
                managed,
                "pending",
                f"the Ray cluster has no room for {managed.member.pool.words}; it starts when there is",
            )
            await room
            self._members.note(managed, "starting", "starting its processes")
        finally:
            room.cancel()

    def _tell_groups(self, port: Endpoint) -> None:
        if self._worker_port.done():
            if self._worker_port.result() == port:
                return
            for managed in self._members.groups.values():  # it may be on another node, or have another port
                managed.member.redirect(port)
            self._worker_port = asyncio.get_running_loop().create_future()
        self._worker_port.set_result(port)

    def _tell_instance_hosts(self, at: Addresses) -> None:
        """They find the next router by themselves, unless it is elsewhere."""
        if at.repository is None:
            return
        if self._instance_port.done():
            before = self._instance_port.result()
            if (before.instances, before.instances_path) == (at.repository.instances, at.repository.instances_path):
                return
            for managed in self._members.instance_hosts:
                managed.member.cut_off()
            self._instance_port = asyncio.get_running_loop().create_future()
        self._instance_port.set_result(at.repository)

    def _num_ranks_beside(self, group: Group) -> int:
        """The most ranks that any host of the group has, those of other groups included."""
        beside = Counter(place.node_id for other in self._members.groups.values() for place in other.member.locations)
        return max(beside[place.node_id] for place in group.locations)
