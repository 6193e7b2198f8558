"""Keeps a deployment alive: starts its members side by side, and again what dies; adds groups and lets others go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from ray.exceptions import RayError

from slipstream.cluster.actors import Endpoint
from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.fleet import MemberState
from slipstream.cluster.kept import Kept, KeptGroup, Observer, Wish
from slipstream.cluster.members import Group, Member, Router, reason_of
from slipstream.cluster.restart_policy import GiveUp, RestartPolicy
from slipstream.cluster.run_state import MemberStatus
from slipstream.router.expected_workers import ExpectedWorkers
from slipstream.router.messages import Role
from slipstream.router.signals import Signals
from slipstream.workers.report import WorkerReport

T = TypeVar("T")
M = TypeVar("M", bound=Member)

NOT_SERVING: tuple[MemberState, ...] = ("new", "pending", "starting", "dead", "failed")
ROUTER_PATIENCE_S = 5.0
FOLLOW_CHANGING_S = 0.1
FOLLOW_SERVING_S = 1.0
PENDING_AFTER_S = 1.0
OVERDUE_S = 15.0  # on top of `drain_timeout_s`, at which a worker ends its drain by itself


class StartFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """The deployment did not come up: one sentence with the member and the reason."""


class Supervisor:
    """One task a member: launch, serve, wait for its death, ask the policy, again.

    The router and the groups come up side by side; only the connection between them has an order: groups serve once
    the router listens. A router that died comes back at the same ports, and the workers, which try again and again,
    find it there.

    A group that is to leave, or to take the other role, gets a `Wish`. Whoever follows the group tells the router,
    which empties the worker, and tells it again if the worker has connected anew meanwhile. What dies with a wish to
    leave is not started again; what dies on the way to another role comes back in that.
    """

    def __init__(self, config: ClusterConfig, router: Router, observer: Observer) -> None:
        self._config = config
        self._observer = observer
        self._router = Kept(router, *self._fresh(router))
        self._groups: dict[str, KeptGroup] = {}
        self._is_settled = False
        self._worker_port: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._all_launched = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _fresh(self, member: Member, version: str = "") -> tuple[RestartPolicy, MemberStatus, float]:
        status = MemberStatus(member.name, member.role, since=time.time(), version=version)
        return RestartPolicy(self._config.restart), status, time.monotonic()

    def _all(self) -> tuple[Kept[Router] | KeptGroup, ...]:
        return (self._router, *self._groups.values())

    @property
    def members(self) -> list[MemberStatus]:
        return [kept.status for kept in self._all()]

    @property
    def router(self) -> Router:
        return self._router.member

    @property
    def groups(self) -> list[KeptGroup]:
        return list(self._groups.values())

    def group(self, name: str) -> KeptGroup | None:
        return self._groups.get(name)

    @property
    def expected(self) -> ExpectedWorkers:
        """What is wanted of each role."""
        wanted = [kept.member.role for kept in self._groups.values() if kept.is_wanted]
        longest = self._config.decode.engine.max_model_len
        return ExpectedWorkers(wanted.count("prefill"), wanted.count("decode"), longest)

    # ---- life of the whole

    async def start(self, groups: Iterable[Group]) -> None:
        """Returns when every member serves. Raises StartFailed if one dies before."""
        for group in groups:
            self._groups[group.name] = KeptGroup(group, *self._fresh(group, group.version))
        self._keep(self._router, self._live_as_router)
        for kept in self._groups.values():
            self._keep(kept, partial(self._live_as_group, kept))
        await self.unless_failed(asyncio.gather(*(kept.ready.wait() for kept in self._all())))

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
        """The deployment has shown that it works: from now on what dies is started again, always."""
        self._is_settled = True
        self._all_launched.set()
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
        keepers = [kept.keeper for kept in self._all() if kept.keeper is not None]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        # The router last: a worker that loses it would go looking for it instead of ending.
        await asyncio.gather(*(kept.member.stop() for kept in self._groups.values() if kept.ready.is_set()))
        if self._router.ready.is_set():
            await self._router.member.stop()
        for kept in self._all():
            kept.member.kill()
        for group in self._groups.values():
            group.member.release()

    async def router_status(self) -> dict[str, Any] | None:
        """How the router sees things; None while there is none."""
        if not self._router.ready.is_set():
            return None
        try:
            async with asyncio.timeout(ROUTER_PATIENCE_S):
                return await self._router.member.status()
        except (RayError, TimeoutError):
            return None

    async def signals(self) -> Signals:
        """How requests fared lately. Raises OSError while there is no router, or one that does not answer."""
        async with asyncio.timeout(ROUTER_PATIENCE_S):
            return await self._router.member.signals()

    async def router_signals(self) -> dict[str, Any] | None:
        """The same for people; None while there is no router."""
        try:
            return asdict(await self.signals())
        except OSError:
            return None

    # ---- changes

    async def add(self, groups: list[Group]) -> None:
        """Starts further groups in a deployment that has settled. The router hears of them at once."""
        assert self._is_settled
        for group in groups:
            assert group.name not in self._groups
            kept = KeptGroup(group, *self._fresh(group, group.version))
            kept.policy.added_later()
            self._groups[group.name] = kept
            self._note(kept, "new", "")
            self._keep(kept, partial(self._live_as_group, kept))
        await self._tell_expected()

    async def let_go(self, kept: KeptGroup, *, migrate: bool) -> None:
        """The group is drained and ends; where nothing can run on it yet, it ends at once."""
        kept.wish = Wish(None, migrate, self._overdue_s())
        await self._tell_expected()
        if kept.ready.is_set():
            kept.asked_epoch = 0
            kept.nudge.set()
            self._note(kept, "draining", "is to leave")
            return
        assert kept.keeper is not None
        kept.keeper.cancel()
        await asyncio.gather(kept.keeper, return_exceptions=True)
        kept.member.kill()
        self._forget(kept)

    async def switch(self, kept: KeptGroup, role: Role) -> None:
        """The group is drained and comes back in the other role; where it does not run, its next start is in that."""
        was_serving = kept.ready.is_set()
        kept.wish = Wish(role, True, self._overdue_s()) if was_serving else None
        kept.member.become(role)
        kept.status.role = role
        kept.asked_epoch = 0
        kept.nudge.set()
        self._note(kept, "draining" if was_serving else kept.status.state, f"is to be a {role} worker")
        await self._tell_expected()
        if not was_serving and kept.status.state not in NOT_SERVING:
            kept.member.cut_off()  # it is loading in the old role

    def _overdue_s(self) -> float:
        return time.monotonic() + self._config.drain_timeout_s + OVERDUE_S

    async def _tell_expected(self) -> None:
        if self._router.ready.is_set():
            with suppress(RayError, TimeoutError):  # the next router is told when it begins to serve
                async with asyncio.timeout(ROUTER_PATIENCE_S):
                    await self._router.member.expect_workers(self.expected)

    def _forget(self, kept: KeptGroup) -> None:
        kept.member.release()
        if self._groups.get(kept.status.name) is kept:  # not another one that has the name by now
            del self._groups[kept.status.name]
            self._note(kept, "stopped", "has left the cluster")

    # ---- life of a member

    def _keep(self, kept: Kept[M], live: Callable[[], Coroutine[Any, Any, str]]) -> None:
        kept.keeper = asyncio.create_task(self._keep_alive(kept, live), name=f"keep {kept.status.name}")
        kept.keeper.add_done_callback(self._keeper_ended)

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        error = None if keeper.cancelled() else keeper.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _keep_alive(self, kept: Kept[M], live: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """`live` goes through one incarnation of the member and returns the reason for its end."""
        while True:
            try:
                reason = await live()
            except RayError as error:
                reason = reason_of(error)
            kept.ready.clear()
            kept.member.kill()
            if isinstance(kept, KeptGroup):
                if kept.is_leaving:
                    self._forget(kept)
                    return
                kept.wish = None  # it starts in the role that it was to have
            now_s = time.monotonic()
            verdict = kept.policy.died(now_s, reason)
            if isinstance(verdict, GiveUp):
                self._note(kept, "failed", verdict.reason)
                if not self._is_settled:
                    raise StartFailed(f"{kept.status.name}: {verdict.reason}")
                await self._tell_expected()
                return
            kept.status.restarts = kept.policy.restarts
            self._note(kept, "dead", f"{reason}; starting it again in {verdict.at_s - now_s:.1f} s")
            await asyncio.sleep(verdict.at_s - now_s)

    async def _live_as_router(self) -> str:
        kept = self._router
        await self._launch(kept)
        addresses, port = await kept.member.serve(self.expected)
        self._tell_groups(port)
        self._observer.listening(addresses)
        self._serves(kept, "listening")
        await self._tell_expected()  # it may have changed while it began to serve
        return await kept.member.death()

    async def _live_as_group(self, kept: KeptGroup) -> str:
        group = kept.member
        kept.asked_epoch = 0
        group.reserve()
        waiting = asyncio.create_task(self._tell_if_pending(kept))
        try:
            await self._launch(kept)
        finally:
            waiting.cancel()
        if all(other.member.places for other in self._groups.values()):
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

    async def _tell_if_pending(self, kept: KeptGroup) -> None:
        room = asyncio.ensure_future(kept.member.room())
        try:
            await asyncio.wait([room], timeout=PENDING_AFTER_S)
            if room.done():
                return
            wanted = ", ".join(f"{amount:g} {kind}" for kind, amount in sorted(kept.member.pool.bundle.items()))
            labels = "".join(f", {key}={value}" for key, value in kept.member.pool.labels.items())
            self._note(kept, "pending", f"no node of the Ray cluster has {wanted} free{labels}; it starts when one has")
            await room
            self._note(kept, "starting", "starting its processes")
        finally:
            room.cancel()

    async def _follow(self, kept: KeptGroup) -> None:
        """Asks a group how it is; that it died is told by its pending `run` calls."""
        while True:
            try:
                report = await kept.member.report()
            except RayError:
                return
            kept.status.startup_s = list(report.startup_s)
            await self._pursue_wish(kept, report)
            if report.state == "ready":
                if kept.wish is None:  # else it has not heard of it yet
                    self._serves(kept, report.progress)
            elif report.state != kept.status.state or report.progress != kept.status.detail:
                self._note(kept, report.state, report.progress)
            is_settled = kept.ready.is_set() and kept.wish is None
            with suppress(TimeoutError):
                await asyncio.wait_for(kept.nudge.wait(), FOLLOW_SERVING_S if is_settled else FOLLOW_CHANGING_S)
            kept.nudge.clear()

    async def _pursue_wish(self, kept: KeptGroup, report: WorkerReport) -> None:
        wish = kept.wish
        if wish is None:
            return
        if report.role == wish.next_role and report.state == "ready":
            kept.wish = None
        elif time.monotonic() > wish.overdue_s:
            kept.member.cut_off()  # what runs there goes on elsewhere, from the tokens that the router has
        elif report.epoch != kept.asked_epoch and self._router.ready.is_set():
            # A router that is gone: the worker will connect to the next one, and is asked then.
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(ROUTER_PATIENCE_S):
                    if await self.router.drain_worker(kept.status.name, wish.next_role, wish.migrate):
                        kept.asked_epoch = report.epoch

    def _serves(self, kept: Kept[M], detail: str) -> None:
        kept.policy.up(time.monotonic())
        if kept.status.state != "ready":
            kept.ready.set()
            self._note(kept, "ready", detail)

    def _note(self, kept: Kept[M], state: MemberState, detail: str) -> None:
        status = kept.status
        if status.state != state:
            status.state, status.since = state, time.time()
            kept.since_s = time.monotonic()
        status.detail = detail
        status.pids, status.host = kept.member.pids, kept.member.host
        self._observer.changed(status, self.members)

    def _tell_groups(self, port: Endpoint) -> None:
        if self._worker_port.done():
            if self._worker_port.result() == port:
                return
            for kept in self._groups.values():  # another node, or a port that somebody else has taken meanwhile
                kept.member.redirect(port)
            self._worker_port = asyncio.get_running_loop().create_future()
        self._worker_port.set_result(port)

    def _num_ranks_beside(self, group: Group) -> int:
        node_id = group.places[0].node_id
        return sum(place.node_id == node_id for other in self._groups.values() for place in other.member.places)
