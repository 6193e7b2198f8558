"""Keeps a deployment alive: starts its members side by side, and again what dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ray.exceptions import RayError

from slipstream.cluster.actors import Endpoint, Listening
from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.members import GroupMember, Member, RouterMember, reason_of
from slipstream.cluster.restart_policy import GiveUp, RestartPolicy
from slipstream.cluster.run_state import MemberStatus

T = TypeVar("T")
M = TypeVar("M", bound=Member)

FOLLOW_STARTING_S = 0.1
FOLLOW_SERVING_S = 1.0


class StartFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """The deployment did not come up: one sentence with the member and the reason."""


class Observer(Protocol):
    """Who watches the supervisor."""

    def changed(self, member: MemberStatus) -> None:
        """A member is in another state, or has something else to say about it."""

    def launched(self, member: MemberStatus) -> None:
        """A member has new processes."""

    def listening(self, at: Listening) -> None:
        """The router listens, for the first time or again."""


@dataclass(slots=True)
class Kept(Generic[M]):
    """A member and what is known of it."""

    member: M
    policy: RestartPolicy
    status: MemberStatus
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """One task a member: launch, serve, wait for its death, ask the policy, again.

    The router and the groups come up side by side; only the connection between them has an order: groups serve once
    the router listens. A router that died comes back at the same ports, and the workers, which try again and again,
    find it there.
    """

    def __init__(
        self, config: ClusterConfig, router: RouterMember, groups: list[GroupMember], observer: Observer
    ) -> None:
        self._config = config
        self._observer = observer
        self._router = self._kept(router)
        self._groups = [self._kept(group) for group in groups]
        self._worker_port: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._all_launched = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    def _kept(self, member: M) -> Kept[M]:
        return Kept(
            member, RestartPolicy(self._config.restart), MemberStatus(member.name, member.role, since=time.time())
        )

    def _all(self) -> tuple[Kept[RouterMember] | Kept[GroupMember], ...]:
        return (self._router, *self._groups)

    @property
    def members(self) -> list[MemberStatus]:
        return [kept.status for kept in self._all()]

    async def start(self) -> None:
        """Returns when every member serves. Raises StartFailed if one dies before."""
        self._keepers.append(self._keep(self._router, self._live_as_router))
        for kept in self._groups:
            self._keepers.append(self._keep(kept, partial(self._live_as_group, kept)))
        ready = [kept.ready.wait() for kept in self._all()]
        await self.unless_failed(asyncio.gather(*ready))

    async def unless_failed(self, work: Awaitable[T]) -> T:
        """The result of `work`, or StartFailed as soon as a member has been given up."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
            for keeper in self._keepers:
                if keeper.done():
                    keeper.result()  # raises
            return task.result()
        finally:
            task.cancel()

    def settle(self) -> None:
        """The deployment has shown that it works: from now on what dies is started again, always."""
        for kept in self._all():
            kept.policy.cluster_ready()

    async def drain(self, deadline_s: float) -> None:
        """Lets running requests finish, for at most `deadline_s` seconds; the router takes no new ones meanwhile."""
        if not self._router.ready.is_set():
            return
        try:
            async with asyncio.timeout(deadline_s + 1.0):
                await self._router.member.drain(deadline_s)
        except (TimeoutError, RayError):
            return

    async def stop(self) -> None:
        """Ends all members: first by asking, then by force."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        # The router last: a worker that loses it would go looking for it instead of ending.
        await asyncio.gather(*(kept.member.stop() for kept in self._groups if kept.ready.is_set()))
        if self._router.ready.is_set():
            await self._router.member.stop()
        for kept in self._all():
            kept.member.kill()

    def _keep(self, kept: Kept[M], live: Callable[[], Coroutine[Any, Any, str]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._keep_alive(kept, live), name=f"keep {kept.status.name}")

    async def _keep_alive(self, kept: Kept[M], live: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """`live` goes through one incarnation of the member and returns the reason for its end."""
        while True:
            try:
                reason = await live()
            except RayError as error:
                reason = reason_of(error)
            kept.ready.clear()
            kept.member.kill()
            now_s = time.monotonic()
            verdict = kept.policy.died(now_s, reason)
            if isinstance(verdict, GiveUp):
                self._note(kept, "failed", verdict.reason)
                raise StartFailed(f"{kept.status.name}: {verdict.reason}")
            kept.status.restarts = kept.policy.restarts
            self._note(kept, "dead", f"{reason}; starting it again in {verdict.at_s - now_s:.1f} s")
            await asyncio.sleep(verdict.at_s - now_s)

    async def _live_as_router(self) -> str:
        kept = self._router
        await self._launch(kept)
        addresses, port = await kept.member.serve()
        self._tell_groups(port)
        self._observer.listening(addresses)
        self._serves(kept, "listening")
        return await kept.member.death()

    async def _live_as_group(self, kept: Kept[GroupMember]) -> str:
        group = kept.member
        await self._launch(kept)
        if all(other.member.places for other in self._groups):
            self._all_launched.set()
        # At the start, so that all know how many they are on a host and take no more than their share of its cores.
        await self._all_launched.wait()
        await group.serve(await asyncio.shield(self._worker_port), self._num_ranks_beside(group))
        death = asyncio.ensure_future(group.death())
        follow = asyncio.ensure_future(self._follow(kept))
        try:
            await asyncio.wait([death, follow], return_when=asyncio.FIRST_COMPLETED)
            return await death
        finally:
            death.cancel()
            follow.cancel()

    async def _launch(self, kept: Kept[M]) -> None:
        self._note(kept, "starting", "starting its processes")
        await kept.member.launch()
        kept.status.pids = kept.member.pids
        self._observer.launched(kept.status)

    async def _follow(self, kept: Kept[GroupMember]) -> None:
        """Asks a group how it is; that it died is told by its pending `run` calls."""
        while True:
            try:
                report = await kept.member.report()
            except RayError:
                return
            kept.status.startup_s = list(report.startup_s)
            if report.state == "ready":
                self._serves(kept, report.progress)
            elif report.state != kept.status.state or report.progress != kept.status.detail:
                self._note(kept, report.state, report.progress)
            await asyncio.sleep(FOLLOW_SERVING_S if kept.ready.is_set() else FOLLOW_STARTING_S)

    def _serves(self, kept: Kept[M], detail: str) -> None:
        kept.policy.up(time.monotonic())
        if kept.status.state != "ready":
            kept.ready.set()
            self._note(kept, "ready", detail)

    def _note(self, kept: Kept[M], state: str, detail: str) -> None:
        status = kept.status
        if status.state != state:
            status.state, status.since = state, time.time()
        status.detail = detail
        status.pids = kept.member.pids
        self._observer.changed(status)

    def _tell_groups(self, port: Endpoint) -> None:
        if self._worker_port.done():
            if self._worker_port.result() == port:
                return
            for kept in self._groups:  # another node, or a port that somebody else has taken meanwhile
                kept.member.redirect(port)
            self._worker_port = asyncio.get_running_loop().create_future()
        self._worker_port.set_result(port)

    def _num_ranks_beside(self, group: GroupMember) -> int:
        node_id = group.places[0].node_id
        return sum(place.node_id == node_id for other in self._groups for place in other.member.places)
