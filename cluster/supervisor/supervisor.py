"""Keeps a deployment alive: starts its members concurrently, restarts those that die, adds groups and removes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from ray.exceptions import RayError

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.state.run_state import MemberStatus
from slipstream.cluster.supervisor.group_monitor import GIVE_UP_S, SERVING_S, SILENT_S, Follower
from slipstream.cluster.supervisor.managed import Kept, KeptGroup, Observer, Wish
from slipstream.cluster.supervisor.managed_router import KeptRouter
from slipstream.cluster.supervisor.members.actor_handles import reason_of
from slipstream.cluster.supervisor.members.members import Group, Member, Router
from slipstream.cluster.supervisor.restart_policy import GiveUp, RestartPolicy
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers

T = TypeVar("T")
M = TypeVar("M", bound=Member)

NOT_SERVING: tuple[MemberState, ...] = ("new", "pending", "starting", "dead", "failed")
PENDING_AFTER_S = 1.0
LOOK_AT_ROUTER_S = 5.0
OVERDUE_S = 15.0  # on top of `drain_timeout_s`, at which a worker ends its drain by itself


class StartFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """The deployment did not come up. The text is one sentence with the member and the reason."""


class Supervisor:
    """Runs one task per member: launch it, let it serve, wait for its death, ask the policy, repeat.

    The router and the groups come up concurrently. Only their connection has an order: groups serve once the router
    listens. A router that died comes back at the same ports, where the workers, which keep trying, find it.

    A group that is to leave, or to take the other role, gets a `Wish`. Its follower tells the router, which empties the
    worker, and tells it again if the worker has reconnected meanwhile. A group that dies with a wish to leave is not
    restarted; one that dies on the way to another role comes back in that role.
    """

    def __init__(self, config: ClusterConfig, router: Router, observer: Observer) -> None:
        self._config = config
        self._observer = observer
        self.router = KeptRouter(router, *self._fresh(router))
        self._follower = Follower(self.router, self._serves, self._note)
        self._groups: dict[str, KeptGroup] = {}
        self._is_settled = False
        self._worker_port: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._all_launched = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _fresh(self, member: Member, version: str = "") -> tuple[RestartPolicy, MemberStatus, float]:
        status = MemberStatus(member.name, member.role, since=time.time(), version=version)
        return RestartPolicy(self._config.restart), status, time.monotonic()

    def _all(self) -> tuple[KeptRouter | KeptGroup, ...]:
        return (self.router, *self._groups.values())

    @property
    def members(self) -> list[MemberStatus]:
        return [kept.status for kept in self._all()]

    @property
    def groups(self) -> list[KeptGroup]:
        return list(self._groups.values())

    def group(self, name: str) -> KeptGroup | None:
        return self._groups.get(name)

    @property
    def expected(self) -> ExpectedWorkers:
        """How many groups of each role are wanted."""
        wanted = [kept for kept in self._groups.values() if kept.is_wanted]
        num_prefill = sum(kept.member.role == "prefill" for kept in wanted)
        decode = [kept for kept in wanted if kept.member.role == "decode"]
        longest = self._config.decode.engine.max_model_len
        hindrance = decode[0].last_death if decode and all(kept.refuses for kept in decode) else ""
        return ExpectedWorkers(num_prefill, len(decode), longest, self._is_settled, hindrance)

    # ---- life of the whole

    async def start(self, groups: Iterable[Group]) -> None:
        """Starts all members. Returns when every one serves; raises StartFailed if one dies before that."""
        for group in groups:
            self._groups[group.name] = KeptGroup(group, *self._fresh(group, group.version))
        self._observer.wants(self.expected)
        self._keep(self.router, self._live_as_router)
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
        """The deployment has shown that it works: from now on, members that die are always restarted."""
        self._is_settled = True
        self._all_launched.set()
        for kept in self._all():
            kept.policy.cluster_ready()

    async def stop(self, *, leaves_clients: bool = False) -> None:
        """Ends all members: first by asking, then by force. The router is not asked if it `leaves_clients` to that of
        the next driver: it would tell them that this is the end."""
        keepers = [kept.keeper for kept in self._all() if kept.keeper is not None]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        if leaves_clients:
            self.router.ready.clear()
            self.router.member.kill()
        # The router is stopped last: a worker that loses it would look for it instead of ending.
        await asyncio.gather(*(kept.member.stop() for kept in self._groups.values() if kept.ready.is_set()))
        if self.router.ready.is_set():
            await self.router.member.stop()
        for kept in self._all():
            kept.member.kill()
        for group in self._groups.values():
            group.member.release()

    # ---- changes

    async def add(self, groups: list[Group]) -> None:
        """Starts further groups in a deployment that has settled. The router is told about them at once."""
        assert self._is_settled
        for group in groups:
            assert group.name not in self._groups
            kept = KeptGroup(group, *self._fresh(group, group.version))
            kept.policy.added_later()
            self._groups[group.name] = kept
            self._note(kept, "new", "")
            self._keep(kept, partial(self._live_as_group, kept))
        await self._tell_wanted()

    async def let_go(self, kept: KeptGroup, *, migrate: bool) -> None:
        """Drains a group and ends it. If nothing can be running on it yet, it ends at once."""
        kept.wish = Wish(None, migrate, self._overdue_s())
        await self._tell_wanted()
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
        """Drains a group and lets it come back in the other role. If it is not running, its next start is in that
        role."""
        was_serving = kept.ready.is_set()
        kept.wish = Wish(role, True, self._overdue_s()) if was_serving else None
        kept.member.become(role)
        kept.status.role = role
        kept.asked_epoch = 0
        kept.nudge.set()
        self._note(kept, "draining" if was_serving else kept.status.state, f"is to be a {role} worker")
        await self._tell_wanted()
        if not was_serving and kept.status.state not in NOT_SERVING:
            kept.member.cut_off()  # it is still loading, in the old role

    def _overdue_s(self) -> float:
        return time.monotonic() + self._config.drain_timeout_s + OVERDUE_S

    def _forget(self, kept: KeptGroup) -> None:
        kept.member.release()
        if self._groups.get(kept.status.name) is kept:  # the name may belong to another group by now
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
        """Restarts a member for as long as the policy says so. `live` runs one incarnation of the member, and returns
        the reason for its end."""
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
                kept.wish = None  # it restarts in the role that it was to change to
            now_s = time.monotonic()
            verdict = kept.policy.died(now_s, reason)
            if isinstance(verdict, GiveUp):
                self._note(kept, "failed", verdict.reason)
                if not self._is_settled:
                    raise StartFailed(f"{kept.status.name}: {verdict.reason}")
                await self._tell_wanted()
                return
            kept.status.restarts, kept.last_death = kept.policy.restarts, reason
            self._note(kept, "dead", f"{reason}; starting it again in {verdict.at_s - now_s:.1f} s")
            if kept.refuses:
                await self.router.expect(self.expected)
            await asyncio.sleep(verdict.at_s - now_s)

    async def _live_as_router(self) -> str:
        kept = self.router
        await self._launch(kept)
        addresses, port = await kept.member.serve(self.expected)
        self._tell_groups(port)
        self._observer.listening(addresses)
        self._serves(kept, "listening")
        await self.router.expect(self.expected)  # the numbers may have changed while the router started
        death, silence = (asyncio.ensure_future(end) for end in (kept.member.death(), self._silence_of_router()))
        try:
            done, _ = await asyncio.wait([death, silence], return_when=asyncio.FIRST_COMPLETED)
            return await (death if death in done else silence)
        finally:
            death.cancel()
            silence.cancel()

    async def _silence_of_router(self) -> str:
        """Returns when the router has not answered for `GIVE_UP_S`: the next one goes on with its clients."""
        kept = self.router
        while True:
            asked = asyncio.ensure_future(kept.member.versions())
            asked_s = time.monotonic()
            try:
                while not asked.done():
                    await asyncio.wait([asked], timeout=SERVING_S)
                    waited_s = time.monotonic() - asked_s
                    if asked.done() or waited_s < SILENT_S:
                        continue
                    if waited_s >= GIVE_UP_S:
                        return f"did not answer for {GIVE_UP_S:g} s"
                    if kept.status.state == "ready":
                        why = f"has not answered for {SILENT_S:g} s; after {GIVE_UP_S:g} another one takes its place"
                        self._note(kept, "silent", why)
            finally:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)  # an error is told by its death, too
            if kept.status.state == "silent":
                self._note(kept, "ready", "answers again")
            await asyncio.sleep(LOOK_AT_ROUTER_S)

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
        # At the start, groups wait for each other, so that all know how many share a host and take only their share of
        # its cores.
        await self._all_launched.wait()
        await group.serve(await asyncio.shield(self._worker_port), self._num_ranks_beside(group))
        death = asyncio.ensure_future(group.death())
        follow = asyncio.ensure_future(self._follower.follow(kept))
        try:
            await asyncio.wait([death, follow], return_when=asyncio.FIRST_COMPLETED)
            return await death
        finally:
            death.cancel()
            follow.cancel()

    async def _launch(self, kept: Kept[M]) -> None:
        before = f", after: {kept.last_death}" if kept.last_death else ""
        self._note(kept, "starting", f"starting its processes{before}")
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

    def _serves(self, kept: Kept[M], detail: str) -> None:
        kept.policy.up(time.monotonic())
        kept.last_death = ""
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

    async def _tell_wanted(self) -> None:
        self._observer.wants(self.expected)
        await self.router.expect(self.expected)

    def _tell_groups(self, port: Endpoint) -> None:
        if self._worker_port.done():
            if self._worker_port.result() == port:
                return
            for kept in self._groups.values():  # it may be on another node, or have another port
                kept.member.redirect(port)
            self._worker_port = asyncio.get_running_loop().create_future()
        self._worker_port.set_result(port)

    def _num_ranks_beside(self, group: Group) -> int:
        node_id = group.places[0].node_id
        return sum(place.node_id == node_id for other in self._groups.values() for place in other.member.places)
