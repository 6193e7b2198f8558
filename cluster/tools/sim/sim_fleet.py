"""The workers of a simulated cluster, made more and fewer as real ones are: `FleetPort` and `ModelFleet` in virtual
time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.cluster.fleet.fleet_port import CHANGING, FleetError, FleetMember, FleetState, MemberState
from slipstream.cluster.fleet.model_fleet import Moved
from slipstream.cluster.tools.sim.sim_world import World
from slipstream.cluster.tools.sim.worker.sim_worker import SimWorker
from slipstream.router.protocol.messages import Role


@dataclass(slots=True, eq=False)
class _Member:
    """`fleet` is the one of the model that it serves or will serve; `worker`, while it drains, may be one of the model
    that it leaves, whose world is `world`."""

    name: str
    role: Role
    host: int
    state: MemberState
    since_s: float
    fleet: SimFleet
    world: World
    worker: SimWorker | None = None
    epoch: int = 0
    is_leaving: bool = False


@dataclass(slots=True)
class _Members:
    """Of all models. `worker_s`: for how long there were workers of each model and role, in whichever state; a worker
    costs that much."""

    max_workers: int | None = None
    by_name: dict[str, _Member] = field(default_factory=dict)
    num_made: int = 0
    worker_s: dict[tuple[str, Role], float] = field(default_factory=dict)
    counted_s: float = 0.0

    def count(self, now_s: float) -> None:
        """To be called before there are more or fewer, or others."""
        for member in self.by_name.values():
            key = (member.fleet.model, member.role)
            self.worker_s[key] = self.worker_s.get(key, 0.0) + now_s - self.counted_s
        self.counted_s = now_s


class SimFleet:
    """The workers of one model. Starting, switching roles and dying take the profile's seconds. `max_workers` None:
    there is room for any number. What runs on a worker that drains moves to others, as on a real cluster."""

    def __init__(
        self, world: World, max_workers: int | None = None, model: str = "", members: _Members | None = None
    ) -> None:
        self.world = world
        self.model = model
        self._members = members if members is not None else _Members(max_workers)
        world.on_drained = self._drained

    def start(self, role: Role, count: int) -> None:
        """Workers that are ready at once."""
        for _ in range(count):
            self._join(self._make(role, "ready"))

    def state(self) -> FleetState:
        own = [member for member in self._members.by_name.values() if member.fleet is self]
        members = tuple(
            FleetMember(m.name, m.role, m.state, m.since_s, str(m.host), is_leaving=m.is_leaving, model=self.model)
            for m in own
        )
        staying = [m for m in members if not m.is_leaving]
        most = self._members.max_workers
        return FleetState(
            members,
            sum(m.role == "prefill" for m in staying),
            sum(m.role == "decode" for m in staying),
            most if most is None else most - len(self._members.by_name) + len(own),
            any(m.state in CHANGING for m in members),
        )

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        if count < 1:
            raise FleetError("invalid", "count", f"count must be at least 1, got {count}")
        most = self._members.max_workers
        if most is not None and len(self._members.by_name) + count > most:
            raise FleetError("unavailable", "count", f"there is room for {most} workers")
        made = [self._make(role, "starting") for _ in range(count)]
        for member in made:
            self._start_in(self.world.config.profile.start_s, member)
        return [member.name for member in made]

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        member = self._known(name)
        if member.is_leaving:
            return
        member.is_leaving = True
        if member.worker is None:
            self._forget(member)
            return
        self._drain(member, None, migrate)

    async def switch_role(self, name: str, role: Role) -> None:
        member = self._known(name)
        if member.role == role:
            return
        self._check_ready(member)
        self._count()
        member.role = role
        self._drain(member, role, migrate=True)

    async def scale(self, role: Role, replicas: int) -> None:
        if replicas < 0:
            raise FleetError("invalid", "replicas", f"replicas must not be negative, got {replicas}")
        everybody = self._members.by_name.values()
        staying = [m for m in everybody if m.fleet is self and m.role == role and not m.is_leaving]
        if replicas > len(staying):
            await self.add(role, replicas - len(staying))
        for member in sorted(staying, key=_num_jobs)[: max(len(staying) - replicas, 0)]:
            await self.remove(member.name)

    def worker(self, name: str) -> SimWorker | None:
        """Of whichever model."""
        member = self._members.by_name.get(name)
        return None if member is None else member.worker

    def kill(self, name: str) -> None:
        """It dies, and is started anew."""
        member = self._members.by_name.get(name)
        if member is None or member.worker is None:
            return
        worker, member.worker = member.worker, None
        self._enter(member, "dead")
        member.world.lose_worker(worker, "connection lost")
        if member.is_leaving:
            self._forget(member)
        else:
            member.fleet._start_in(member.fleet.world.config.profile.start_s, member)

    def give(self, name: str, other: SimFleet, role: Role) -> None:
        """It becomes a worker of another model."""
        member = self._known(name)
        self._check_ready(member)
        self._count()
        member.fleet, member.role = other, role
        self._drain(member, None, migrate=True)

    def _known(self, name: str) -> _Member:
        member = self._members.by_name.get(name)
        if member is None or member.fleet is not self:
            raise FleetError("unknown", "name", f"there is no worker {name}")
        return member

    def _check_ready(self, member: _Member) -> None:
        if member.state != "ready" or member.is_leaving:
            raise FleetError("conflict", "name", f"{member.name} is {member.state}")

    def _make(self, role: Role, state: MemberState) -> _Member:
        self._count()
        number = self._members.num_made
        self._members.num_made += 1
        host = number // self.world.config.profile.workers_per_host
        member = _Member(f"w{number}", role, host, state, self.world.clock.now_s, self, self.world)
        self._members.by_name[member.name] = member
        return member

    def _forget(self, member: _Member) -> None:
        self._count()
        del self._members.by_name[member.name]

    def _count(self) -> None:
        self._members.count(self.world.clock.now_s)

    def _start_in(self, seconds: float, member: _Member) -> None:
        clock = self.world.clock
        clock.at(clock.now_s + seconds, self._join, member)

    def _join(self, member: _Member) -> None:
        if self._members.by_name.get(member.name) is not member or member.worker is not None:
            return  # it was removed meanwhile
        member.epoch += 1
        member.world = self.world
        self._enter(member, "ready")
        member.worker = self.world.add_worker(member.name, member.role, member.host, member.epoch)

    def _drain(self, member: _Member, next_role: Role | None, migrate: bool) -> None:
        self._enter(member, "draining")
        assert member.worker is not None
        world, peer = member.world, member.worker.hello.worker
        if migrate:
            world.tell_progress(member.worker)
        world.perform(world.dispatcher.drain(peer, world.clock.now_s, next_role, migrate))

    def _drained(self, worker: SimWorker) -> None:
        member = self._members.by_name.get(worker.name)
        if member is None or member.worker is not worker:
            return
        member.worker = None
        self.world.lose_worker(worker, "drained")
        if member.is_leaving:
            self._forget(member)
        elif member.fleet is self:
            self._enter(member, "connecting")
            self._start_in(self.world.config.profile.role_switch_s, member)
        else:
            self._enter(member, "loading")
            member.fleet._start_in(member.fleet.world.config.profile.model_swap_s, member)

    def _enter(self, member: _Member, state: MemberState) -> None:
        member.state, member.since_s = state, self.world.clock.now_s


class SimModelFleet:
    """The workers of all models of a simulated cluster: `ModelFleet`."""

    def __init__(self, worlds: Mapping[str, World], max_workers: int | None = None) -> None:
        self._members = _Members(max_workers)
        self._fleets = {model: SimFleet(world, None, model, self._members) for model, world in worlds.items()}
        self._any = next(iter(self._fleets.values()))  # each of them finds the workers of all

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._fleets)

    def of_model(self, model: str) -> SimFleet:
        fleet = self._fleets.get(model)
        if fleet is None:
            raise FleetError("unknown", "model", f"there is no model {model}")
        return fleet

    async def move(self, name: str, model: str, role: Role) -> Moved:
        target = self.of_model(model)
        member = self._members.by_name.get(name)
        if member is None:
            raise FleetError("unknown", "name", f"there is no worker {name}")
        if member.fleet is target:
            await target.switch_role(name, role)
        else:
            member.fleet.give(name, target, role)
        return Moved(name)

    @property
    def ready(self) -> list[str]:
        return [member.name for member in self._members.by_name.values() if member.state == "ready"]

    def worker(self, name: str) -> SimWorker | None:
        return self._any.worker(name)

    def kill(self, name: str) -> None:
        """It dies, and is started anew."""
        self._any.kill(name)

    def worker_s(self, model: str, role: Role, now_s: float) -> float:
        """For how long there were workers of that model and role by now, summed up, in whichever state."""
        self._members.count(now_s)
        return self._members.worker_s.get((model, role), 0.0)


def _num_jobs(member: _Member) -> int:
    return 0 if member.worker is None else len(member.worker.attempts)
