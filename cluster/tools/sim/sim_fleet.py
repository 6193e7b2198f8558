"""The workers of a simulated cluster, made more and fewer as real ones are: `FleetPort` in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.fleet.fleet_port import CHANGING, FleetError, FleetMember, FleetState, MemberState
from slipstream.cluster.tools.sim.sim_world import World
from slipstream.cluster.tools.sim.worker.sim_worker import SimWorker
from slipstream.router.protocol.messages import Role


@dataclass(slots=True, eq=False)
class _Member:
    name: str
    role: Role
    host: int
    state: MemberState
    since_s: float
    worker: SimWorker | None = None
    epoch: int = 0
    is_leaving: bool = False


class SimFleet:
    """Starting, switching roles and dying take the profile's seconds. `max_workers` None: there is room for any number.
    What runs on a worker that drains moves to others, as on a real cluster."""

    def __init__(self, world: World, max_workers: int | None = None) -> None:
        self._world = world
        self._max_workers = max_workers
        self._members: dict[str, _Member] = {}
        self._num_made = 0
        world.on_drained = self._drained

    def start(self, role: Role, count: int) -> None:
        """Workers that are ready at once."""
        for _ in range(count):
            self._join(self._make(role, "ready"))

    @property
    def ready(self) -> list[str]:
        return [member.name for member in self._members.values() if member.state == "ready"]

    def worker(self, name: str) -> SimWorker | None:
        member = self._members.get(name)
        return None if member is None else member.worker

    def kill(self, name: str) -> None:
        """It dies, and is started anew."""
        member = self._members.get(name)
        if member is None or member.worker is None:
            return
        worker, member.worker = member.worker, None
        self._enter(member, "dead")
        self._world.lose_worker(worker, "connection lost")
        if member.is_leaving:
            del self._members[name]
        else:
            self._start_in(self._world.config.profile.start_s, member)

    def state(self) -> FleetState:
        members = tuple(
            FleetMember(m.name, m.role, m.state, m.since_s, str(m.host), is_leaving=m.is_leaving)
            for m in self._members.values()
        )
        staying = [m for m in members if not m.is_leaving]
        return FleetState(
            members,
            sum(m.role == "prefill" for m in staying),
            sum(m.role == "decode" for m in staying),
            self._max_workers,
            any(m.state in CHANGING for m in members),
        )

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        if count < 1:
            raise FleetError("invalid", "count", f"count must be at least 1, got {count}")
        if self._max_workers is not None and len(self._members) + count > self._max_workers:
            raise FleetError("unavailable", "count", f"there is room for {self._max_workers} workers")
        made = [self._make(role, "starting") for _ in range(count)]
        for member in made:
            self._start_in(self._world.config.profile.start_s, member)
        return [member.name for member in made]

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        member = self._known(name)
        if member.is_leaving:
            return
        member.is_leaving = True
        if member.worker is None:
            del self._members[name]
            return
        self._drain(member, None, migrate)

    async def switch_role(self, name: str, role: Role) -> None:
        member = self._known(name)
        if member.role == role:
            return
        if member.state != "ready" or member.is_leaving:
            raise FleetError("conflict", "name", f"{name} is {member.state}")
        member.role = role
        self._drain(member, role, migrate=True)

    async def scale(self, role: Role, replicas: int) -> None:
        if replicas < 0:
            raise FleetError("invalid", "replicas", f"replicas must not be negative, got {replicas}")
        staying = [m for m in self._members.values() if m.role == role and not m.is_leaving]
        if replicas > len(staying):
            await self.add(role, replicas - len(staying))
        for member in sorted(staying, key=_num_jobs)[: max(len(staying) - replicas, 0)]:
            await self.remove(member.name)

    def _known(self, name: str) -> _Member:
        member = self._members.get(name)
        if member is None:
            raise FleetError("unknown", "name", f"there is no worker {name}")
        return member

    def _make(self, role: Role, state: MemberState) -> _Member:
        number = self._num_made
        self._num_made += 1
        host = number // self._world.config.profile.workers_per_host
        member = _Member(f"w{number}", role, host, state, self._world.clock.now_s)
        self._members[member.name] = member
        return member

    def _start_in(self, seconds: float, member: _Member) -> None:
        clock = self._world.clock
        clock.at(clock.now_s + seconds, self._join, member)

    def _join(self, member: _Member) -> None:
        if self._members.get(member.name) is not member or member.worker is not None:
            return  # it was removed meanwhile
        member.epoch += 1
        self._enter(member, "ready")
        member.worker = self._world.add_worker(member.name, member.role, member.host, member.epoch)

    def _drain(self, member: _Member, next_role: Role | None, migrate: bool) -> None:
        self._enter(member, "draining")
        assert member.worker is not None
        world, peer = self._world, member.worker.hello.worker
        if migrate:
            world.tell_progress(member.worker)
        world.perform(world.dispatcher.drain(peer, world.clock.now_s, next_role, migrate))

    def _drained(self, worker: SimWorker) -> None:
        member = self._members.get(worker.name)
        if member is None or member.worker is not worker:
            return
        member.worker = None
        self._world.lose_worker(worker, "drained")
        if member.is_leaving:
            del self._members[member.name]
        else:
            self._enter(member, "connecting")
            self._start_in(self._world.config.profile.role_switch_s, member)

    def _enter(self, member: _Member, state: MemberState) -> None:
        member.state, member.since_s = state, self._world.clock.now_s


def _num_jobs(member: _Member) -> int:
    return 0 if member.worker is None else len(member.worker.attempts)
