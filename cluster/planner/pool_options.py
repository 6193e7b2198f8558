"""Which numbers of workers may be had at all, and which worker would have to go for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.planner_decision import AddWorkers, PlannerAction, RemoveWorker, SwitchRole
from slipstream.router.protocol.messages import Role
from slipstream.router.status.load_signals import Signals, WorkerSignals

FEW = 10  # workers, up to which all splits of them are looked at


@dataclass(frozen=True, slots=True, order=True)
class Pools:
    """Workers of each role."""

    num_prefill: int
    num_decode: int

    @property
    def total(self) -> int:
        return self.num_prefill + self.num_decode

    def __str__(self) -> str:
        return f"{self.num_prefill}P{self.num_decode}D"


@dataclass(frozen=True, slots=True)
class PoolChange:
    """From some pools to others: how many workers change role, are new, go."""

    num_switched: int
    num_added: int
    num_removed: int

    @classmethod
    def between(cls, now: Pools, then: Pools) -> PoolChange:
        prefill, decode = then.num_prefill - now.num_prefill, then.num_decode - now.num_decode
        switched = min(abs(prefill), abs(decode)) if prefill * decode < 0 else 0
        return cls(switched, max(then.total - now.total, 0), max(now.total - then.total, 0))


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What the configuration and the machines allow."""

    min_prefill: int
    max_prefill: int
    min_decode: int
    max_decode: int
    max_workers: int
    min_workers: int = 0

    @classmethod
    def of(cls, config: PlannerConfig, fleet: FleetState, first_total: int) -> PoolLimits:
        most = config.max_workers if config.max_workers is not None else max(first_total, 1)
        if fleet.max_members is not None:
            most = min(most, fleet.max_members)
        return cls(
            config.min_prefill,
            config.max_prefill if config.max_prefill is not None else most,
            max(config.min_decode, 1),  # none at all is for an idle cluster, which is a case of its own
            config.max_decode if config.max_decode is not None else most,
            max(most, config.min_prefill + max(config.min_decode, 1)),
        )

    def allows(self, pools: Pools) -> bool:
        return (
            self.min_prefill <= pools.num_prefill <= self.max_prefill
            and self.min_decode <= pools.num_decode <= self.max_decode
            and self.min_workers <= pools.total <= self.max_workers
        )

    def nearest(self, pools: Pools) -> Pools:
        """The pools that are allowed, cut where they are too many, decode workers first of all."""
        decode = min(max(pools.num_decode, self.min_decode), self.max_decode, self.max_workers - self.min_prefill)
        prefill = min(max(pools.num_prefill, self.min_prefill), self.max_prefill, self.max_workers - decode)
        decode = max(decode, min(self.min_workers - prefill, self.max_decode))
        return Pools(prefill, decode)


def candidates(now: Pools, limits: PoolLimits) -> Iterator[Pools]:
    """All splits of few workers; of many, those that differ by powers of two in each pool. `now` is among them."""
    if max(now.total, min(limits.max_workers, 2 * now.total + 2)) <= FEW:
        for prefill in range(limits.max_prefill + 1):
            for decode in range(limits.max_decode + 1):
                if limits.allows(Pools(prefill, decode)):
                    yield Pools(prefill, decode)
        return
    seen = set()
    for prefill in _around(now.num_prefill, limits.max_prefill):
        for decode in _around(now.num_decode, limits.max_decode):
            pools = Pools(prefill, decode)
            if pools not in seen and limits.allows(pools):
                seen.add(pools)
                yield pools


def smaller(now: Pools, step: int, limits: PoolLimits) -> list[Pools]:
    """With fewer workers: one pool smaller, or one smaller still and the other larger."""
    found = []
    for size in {1, step}:
        for prefill, decode in ((-size, 0), (0, -size), (-size - 1, 1), (1, -size - 1)):
            pools = Pools(now.num_prefill + prefill, now.num_decode + decode)
            if min(pools.num_prefill, pools.num_decode) >= 0 and limits.allows(pools):
                found.append(pools)
    return found


def towards(now: Pools, then: Pools, step: int, growth: int = 1) -> Pools:
    """As far on the way as one change goes: at most `step` workers switch or go, at most `growth` come for each that is
    there."""
    move = PoolChange.between(now, then)
    switched = min(move.num_switched, step)
    prefill, decode = then.num_prefill - now.num_prefill, then.num_decode - now.num_decode
    sign = 1 if prefill > 0 else -1
    if move.num_switched:
        now = Pools(now.num_prefill + sign * switched, now.num_decode - sign * switched)
    if switched < move.num_switched:
        return now
    prefill, decode = then.num_prefill - now.num_prefill, then.num_decode - now.num_decode  # of one sign by now
    most = growth * max(now.total, 1) if prefill + decode > 0 else step
    if abs(prefill + decode) > most:
        share = most / abs(prefill + decode)
        first = round(prefill * share)
        prefill, decode = first, (most if prefill + decode > 0 else -most) - first
    return Pools(now.num_prefill + prefill, now.num_decode + decode)


def max_step(total: int, share: float) -> int:
    return max(math.floor(total * share), 1)


def _around(number: int, most: int) -> list[int]:
    found, away = {0, number}, 1
    while away <= max(number, 4) * 2:
        found |= {number - away, number + away}
        away *= 2
    return sorted(one for one in found if 0 <= one <= most)


def actions_for(now: Pools, then: Pools, fleet: FleetState, signals: Signals) -> tuple[PlannerAction, ...] | str:
    """The changes that lead there, on workers that are ready and have least on them; or why there are none."""
    gone: set[str] = set()
    actions: list[PlannerAction] = []
    prefill, decode = then.num_prefill - now.num_prefill, then.num_decode - now.num_decode
    while prefill * decode < 0:
        source: Role = "decode" if prefill > 0 else "prefill"
        target: Role = "prefill" if prefill > 0 else "decode"
        name = leaver(source, fleet, signals, gone)
        if name is None:
            return f"no {source} worker can be spared: what runs there has no room elsewhere"
        gone.add(name)
        actions.append(SwitchRole(name, target))
        prefill, decode = (prefill - 1, decode + 1) if prefill > 0 else (prefill + 1, decode - 1)
    sides: tuple[tuple[Role, int], ...] = (("prefill", prefill), ("decode", decode))
    for role, change in sides:
        for _ in range(-change):
            name = leaver(role, fleet, signals, gone)
            if name is None:
                return f"no {role} worker can be spared: what runs there has no room elsewhere"
            gone.add(name)
            actions.append(RemoveWorker(name))
        if change > 0:
            actions.append(AddWorkers(role, change))
    return tuple(actions)


def leaver(role: Role, fleet: FleetState, signals: Signals, gone: set[str]) -> str | None:
    """The worker of a role that is cheapest to take away: one that does not even serve, or else the one with least to
    do, if the others have pages and slots for all that runs on it and on those in `gone`."""
    members = [one for one in fleet.members if one.role == role and not one.is_leaving and one.name not in gone]
    idle = [one for one in members if one.state not in ("ready", "draining")]
    if idle:
        return idle[-1].name
    here = {worker.name: worker for worker in signals.workers if worker.role == role and not worker.draining}
    ready = [here[one.name] for one in members if one.state == "ready" and one.name in here]
    if not ready:
        return members[-1].name if members and members[-1].state == "ready" else None
    if role == "prefill":
        return min(ready, key=lambda worker: worker.pending_tokens).name
    chosen = min(ready, key=lambda worker: (worker.num_seqs, worker.context_tokens))
    leaving = [chosen, *(here[name] for name in gone if name in here)]
    stay = [worker for worker in ready if worker is not chosen]
    return chosen.name if have_room(stay, leaving) else None


def have_room(stay: list[WorkerSignals], leaving: list[WorkerSignals]) -> bool:
    """Pages and slots for what runs on those that leave."""
    num_seqs = sum(worker.num_seqs for worker in leaving)
    if num_seqs == 0:
        return True
    pages = sum(max(worker.num_pages - worker.free_pages, 0) for worker in leaving)
    free_slots = sum(max(worker.free_slots, 0) for worker in stay)
    free_pages = sum(max(worker.free_pages, 0) for worker in stay)
    return free_slots >= num_seqs and free_pages >= pages
