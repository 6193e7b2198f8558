"""Keeps a deployment alive: starts its members concurrently, restarts those that die, adds groups and removes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ray.exceptions import RayError

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.ray.bundles import PoolResources
from slipstream.cluster.state.cluster_state import MemberStatus
from slipstream.cluster.supervisor.incarnations import Incarnations
from slipstream.cluster.supervisor.managed import (
    Managed,
    ManagedGroup,
    ManagedInstanceHost,
    Observer,
    PendingChange,
)
from slipstream.cluster.supervisor.managed_router import ManagedRouter
from slipstream.cluster.supervisor.members.actor_handles import reason_of
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.members.members import Group, InstanceHostControl, Member, RouterControl
from slipstream.cluster.supervisor.restart_policy import GiveUp
from slipstream.cluster.supervisor.supervised_members import SupervisedMembers
from slipstream.cluster.supervisor.supervised_model import SupervisedModel
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers

T = TypeVar("T")
M = TypeVar("M", bound=Member)

NOT_SERVING: tuple[MemberState, ...] = ("new", "pending", "starting", "dead", "failed")
OVERDUE_S = 15.0  # on top of `drain_timeout_s`, at which a worker ends its drain by itself


class StartFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """The deployment did not come up. The text is one sentence with the member and the reason."""


class Supervisor:
    """Runs one task per member: launch it, let it serve, wait for its death, ask the policy, repeat.

    A group that is to leave, to take the other role or to serve another model gets a `PendingChange`. Its follower
    tells the router, which empties the worker, and tells it again if the worker has reconnected meanwhile. A group that
    dies while it is to leave is not restarted; one that dies on the way to another role or model comes back there.
    """

    def __init__(
        self,
        config: ClusterConfig,
        router: RouterControl,
        observer: Observer,
        instance_hosts: Sequence[InstanceHostControl] = (),
    ) -> None:
        self._config = config
        self._members = SupervisedMembers(config, router, observer, instance_hosts)
        self._incarnations = Incarnations(self._members)
        self._spares_others = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def router(self) -> ManagedRouter:
        return self._members.router

    @property
    def members(self) -> list[MemberStatus]:
        return self._members.statuses

    @property
    def groups(self) -> list[ManagedGroup]:
        return list(self._members.groups.values())

    def group(self, name: str) -> ManagedGroup | None:
        return self._members.groups.get(name)

    @property
    def expected(self) -> dict[str, ExpectedWorkers]:
        """How many groups of each role are wanted, by model."""
        return self._members.expected

    def add_model(self, name: str, max_model_len: int | None) -> None:
        """Groups of this model may be added from now on."""
        self._members.models[name] = SupervisedModel(max_model_len)

    def is_leaving(self, name: str) -> bool:
        """Whether this model is being removed, or is gone."""
        model = self._members.models.get(name)
        return model is None or model.is_leaving

    async def end_model(self, name: str, drained: Awaitable[None]) -> None:
        """Ends all groups of a model, and forgets it. Those that the router drains end by themselves and are not
        restarted; one that dies before that is. When `drained` returns, the others are ended."""
        if name in self._members.models:
            self._members.models[name].is_leaving = True
        try:
            await drained
        finally:
            await asyncio.gather(*map(self._end, self._members.of_model(name)))
            self._members.models.pop(name, None)
        await self._members.tell_wanted()

    async def start(self, groups: Iterable[Group], *, has_served: bool = False) -> None:
        """Starts all members. Returns when every one serves; raises StartFailed if one dies before that. If a cluster
        of several models, or of one beside a repository, `has_served` under an earlier driver, groups are tried again,
        and a model that cannot be started does not hold up the others."""
        self._spares_others = has_served and (len(self._members.models) > 1 or self._config.repository.is_on)
        for group in groups:
            managed = self._members.add(group)
            if self._spares_others:
                managed.policy.added_later()
        self._members.observer.wants(self.expected)
        self._supervise(self.router, self._incarnations.of_router)
        for host in self._members.instance_hosts:
            self._supervise(host, partial(self._incarnations.of_instance_host, host))
        for managed in self._members.groups.values():
            self._supervise(managed, partial(self._incarnations.of_group, managed))
        await self.unless_failed(asyncio.gather(*map(self._up_or_given_up, self._members.all())))

    async def _up_or_given_up(self, managed: ManagedRouter | ManagedInstanceHost | ManagedGroup) -> None:
        assert managed.supervising_task is not None
        ready = asyncio.ensure_future(managed.ready.wait())
        try:
            await asyncio.wait([ready, managed.supervising_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()

    def _is_spared(self, managed: Managed[M]) -> bool:
        """Whether the cluster starts although this member does not: other models still can."""
        if not isinstance(managed, ManagedGroup) or not (managed.came_later or self._spares_others):
            return False
        if managed.came_later or self._config.repository.is_on:
            return True
        others = [one for one in self._members.groups.values() if one.member.model != managed.member.model]
        return any(one.status.state != "failed" for one in others)

    async def unless_failed(self, work: Awaitable[T]) -> T:
        """The result of `work`, or StartFailed as soon as a member has been given up."""
        task = asyncio.ensure_future(work)
        try:
            waiting: set[asyncio.Future[Any]] = {task, self._broken}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()  # raises
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def settle(self) -> None:
        """The deployment has shown that it works: from now on, members that die are always restarted."""
        self._members.is_settled = True
        for model in self._members.models.values():
            model.has_served = True
        self._incarnations.all_launched.set()
        for managed in self._members.all():
            managed.policy.cluster_ready()
        self.router.member.tolerate_failed_models()
        self.router.member.keep_standby()

    async def stop(self, *, leaves_clients: bool = False) -> None:
        """Ends all members: first by asking, then by force. The router is not asked if it `leaves_clients` to that of
        the next driver: it would tell them that this is the end."""
        tasks = [managed.supervising_task for managed in self._members.all() if managed.supervising_task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if leaves_clients:
            self.router.ready.clear()
            self.router.member.kill()
        # The router is stopped last: a worker that loses it would look for it instead of ending.
        stopped = [managed.member.stop() for managed in self._members.groups.values() if managed.ready.is_set()]
        stopped += [managed.member.stop() for managed in self._members.instance_hosts if managed.ready.is_set()]
        await asyncio.gather(*stopped)
        if self.router.ready.is_set():
            await self.router.member.stop()
        for managed in self._members.all():
            managed.member.kill()
        self.router.member.end_standby()
        for group in self._members.groups.values():
            group.member.release()

    async def add(self, groups: list[Group]) -> None:
        """Starts further groups. The router learns of them at once. If they cannot be started, others serve on."""
        for group in groups:
            managed = self._members.add(group)
            managed.policy.added_later()
            managed.came_later = True
            self._members.note(managed, "new", "")
            self._supervise(managed, partial(self._incarnations.of_group, managed))
        await self._members.tell_wanted()

    async def served(self, name: str) -> None:
        """Returns when a group serves, or has been removed meanwhile. Raises StartFailed if it is given up."""
        managed = self._members.groups.get(name)
        if managed is None:
            return
        await self._up_or_given_up(managed)
        if managed.status.state == "failed":
            raise StartFailed(f"{name}: {managed.status.detail}")

    async def remove(self, managed: ManagedGroup, *, migrate: bool) -> None:
        """Drains a group and ends it. If nothing can be running on it yet, it ends at once."""
        managed.pending_change = PendingChange(None, migrate, self._overdue_s())
        await self._members.tell_wanted()
        if managed.ready.is_set():
            managed.asked_epoch = 0
            managed.nudge.set()
            self._members.note(managed, "draining", "is to leave")
            return
        await self._end(managed)

    async def _end(self, managed: ManagedGroup) -> None:
        """Ends a group at once. Nothing is running on it, or it has been drained."""
        assert managed.supervising_task is not None
        managed.supervising_task.cancel()
        await asyncio.gather(managed.supervising_task, return_exceptions=True)
        if managed.ready.is_set():
            await managed.member.stop()
        managed.member.kill()
        self._members.forget(managed)

    async def switch(self, managed: ManagedGroup, role: Role) -> None:
        """Drains a group and lets it come back in the other role. If it is not running, its next start is in that
        role."""
        was_serving = managed.ready.is_set()
        managed.pending_change = PendingChange(role, True, self._overdue_s()) if was_serving else None
        managed.member.become(role)
        managed.status.role = role
        managed.asked_epoch = 0
        managed.nudge.set()
        self._members.note(managed, "draining" if was_serving else managed.status.state, f"is to be a {role} worker")
        await self._members.tell_wanted()
        if not was_serving and managed.status.state not in NOT_SERVING:
            managed.member.cut_off()  # it is still loading, in the old role

    async def move(
        self, managed: ManagedGroup, deployment: Deployment, pools: Mapping[Role, PoolResources], role: Role
    ) -> None:
        """Drains a group that serves, and lets its processes go on with another model."""
        managed.pending_change = PendingChange(None, True, self._overdue_s(), moves=True)
        managed.member.adopt(deployment, pools, role)
        status = managed.status
        (status.model, status.version), status.role = deployment.model, role
        managed.asked_epoch = 0
        managed.nudge.set()
        self._members.note(managed, "draining", f"is to serve {status.model}")
        await self._members.tell_wanted()

    def _overdue_s(self) -> float:
        return time.monotonic() + self._config.drain_timeout_s + OVERDUE_S

    def _supervise(self, managed: Managed[M], live: Callable[[], Coroutine[Any, Any, str]]) -> None:
        managed.supervising_task = asyncio.create_task(
            self._keep_alive(managed, live), name=f"supervise {managed.status.name}"
        )
        managed.supervising_task.add_done_callback(self._supervision_ended)

    def _supervision_ended(self, supervising_task: asyncio.Task[None]) -> None:
        error = None if supervising_task.cancelled() else supervising_task.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _keep_alive(self, managed: Managed[M], live: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Restarts a member for as long as the policy says so. `live` runs one incarnation of the member, and returns
        the reason for its end."""
        while True:
            try:
                reason = await live()
            except RayError as error:
                reason = reason_of(error)
            has_left = isinstance(managed, ManagedGroup) and await self._has_left(managed)
            managed.ready.clear()
            managed.member.kill()
            if isinstance(managed, ManagedGroup):
                if has_left:
                    self._members.forget(managed)
                    return
                managed.pending_change = None  # it restarts in the role that it was to change to
            now_s = time.monotonic()
            verdict = managed.policy.died(now_s, reason)
            if isinstance(verdict, GiveUp):
                self._members.note(managed, "failed", verdict.reason)
                if not self._members.is_settled and not self._is_spared(managed):
                    raise StartFailed(f"{managed.status.name}: {verdict.reason}")
                await self._members.tell_wanted()
                return
            managed.status.restarts, managed.last_death = managed.policy.restarts, reason
            self._members.note(managed, "dead", f"{reason}; starting it again in {verdict.at_s - now_s:.1f} s")
            if managed.refuses:
                await self.router.expect(self.expected)
            await asyncio.sleep(verdict.at_s - now_s)

    async def _has_left(self, managed: ManagedGroup) -> bool:
        """Whether a group that has ended is not to come back. One that dies while its model is being removed does: the
        model's requests still run, and the router drains it when they have ended."""
        return managed.is_leaving or (
            self._members.models[managed.member.model].is_leaving and await managed.member.has_left()
        )
