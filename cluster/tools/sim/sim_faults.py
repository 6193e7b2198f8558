"""What goes wrong in a run, when, and to whom: drawn from the seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.cluster.tools.sim.sim_config import FaultConfig
from slipstream.cluster.tools.sim.sim_fleet import SimModelFleet
from slipstream.cluster.tools.sim.worker.sim_worker import SimWorker

FaultKind = Literal["kill", "slow", "cut", "link"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened: `worker` is the one that it happened to, `other` at the other end of the link, if it was one."""

    at_s: float
    kind: FaultKind
    worker: str
    other: str = ""


class SimFaults:
    """Plans them all at the beginning; `happened` is the list of those that found somebody."""

    def __init__(
        self, config: FaultConfig, seed: int, clock: VirtualClock, fleet: SimModelFleet, span_s: float
    ) -> None:
        self._config = config
        self._clock = clock
        self._fleet = fleet
        self._rng = random.Random(f"faults {seed}")
        self._num_slow: Counter[SimWorker] = Counter()
        self.happened: list[Fault] = []
        counts: tuple[tuple[FaultKind, int], ...] = (
            ("kill", config.kills),
            ("slow", config.slow),
            ("cut", config.cuts),
            ("link", config.links),
        )
        for kind, count in counts:
            for _ in range(count):
                clock.at(self._rng.uniform(0.0, span_s), self._strike, kind)

    def _strike(self, kind: FaultKind) -> None:
        ready = self._fleet.ready
        if not ready:
            return
        name = self._rng.choice(ready)
        worker = self._fleet.worker(name)
        if worker is None:
            return
        config, clock, network = self._config, self._clock, worker.network
        if kind == "link":
            others = [other for other in map(self._fleet.worker, ready) if other and other.nic is not worker.nic]
            if others:
                other = self._rng.choice(others)
                self.happened.append(Fault(clock.now_s, kind, name, other.name))
                network.cut_link(worker.nic, other.nic, True)
                clock.at(clock.now_s + config.cut_s, self._mend, (worker, other))
            return
        self.happened.append(Fault(clock.now_s, kind, name))
        match kind:
            case "kill":
                self._fleet.kill(name)
            case "slow":
                self._num_slow[worker] += 1
                worker.engine.slow_down(config.slow_factor)
                clock.at(clock.now_s + config.slow_s, self._recover, worker)
            case "cut":
                network.cut(worker.nic, True)
                clock.at(clock.now_s + config.cut_s, self._heal, worker)

    def _recover(self, worker: SimWorker) -> None:
        """What was slowed down twice is slow until the second time is over, too."""
        self._num_slow[worker] -= 1
        if not self._num_slow[worker]:
            del self._num_slow[worker]
            worker.engine.slow_down(1.0)

    def _heal(self, worker: SimWorker) -> None:
        worker.network.cut(worker.nic, False)

    def _mend(self, ends: tuple[SimWorker, SimWorker]) -> None:
        one, other = ends
        one.network.cut_link(one.nic, other.nic, False)
