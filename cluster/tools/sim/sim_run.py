"""One run: a workload on a number of workers under one policy, and what came of it."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.planner.planner_decision import AddWorkers, PlannerDecision, RemoveWorker, SwitchRole
from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.tools.sim.client_outcomes import Outcomes
from slipstream.cluster.tools.sim.hardware.hardware_profile import ProfileError, WorkerProfile
from slipstream.cluster.tools.sim.hardware.roofline import PROFILES
from slipstream.cluster.tools.sim.sim_config import SimConfig, Split
from slipstream.cluster.tools.sim.sim_faults import Fault, SimFaults
from slipstream.cluster.tools.sim.sim_fleet import SimFleet
from slipstream.cluster.tools.sim.sim_world import World, WorldConfig
from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS
from slipstream.cluster.tools.workload.workload import Workload
from slipstream.router.config.router_config import DispatchConfig, PolicyName
from slipstream.router.protocol.messages import ROLES, Role
from slipstream.router.requests.placement_decision import REMOTE_REASONS

NUM_SAMPLES = 100  # of how things stood, over the arrivals
PROGRESS_EVERY = 2000  # events


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stood. `busy` is the share of their time that the ready workers of a role have computed since the
    sample before."""

    at_s: float
    num_waiting: int
    num_running: int
    num_prefill: int
    num_decode: int
    busy_prefill: float
    busy_decode: float


@dataclass(slots=True)
class RunResult:
    """`cpu_s` and `rss_bytes` are what the simulation itself took; all else is the same for the same seed."""

    policy: PolicyName
    split: Split
    outcomes: Outcomes
    simulated_s: float = 0.0
    num_transfers: int = 0
    transfer_bytes: float = 0.0
    most_transfers: int = 0
    num_preemptions: int = 0
    num_moves: int = 0  # of sequences that decoded to another worker
    pause_s: float = 0.0  # that each of them stood still, on average
    placements: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    cached_share: float = 0.0
    worker_s: dict[Role, float] = field(default_factory=dict)  # ready, summed over workers
    busy_s: dict[Role, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    decisions: list[PlannerDecision] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    num_events: int = 0
    cpu_s: float = 0.0
    rss_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.split.name} {self.policy}"

    @property
    def attainment(self) -> float:
        """Share of all requests that ended well and kept both levels."""
        return self.outcomes.num_good / max(len(self.outcomes), 1)

    @property
    def goodput_rps(self) -> float:
        return self.outcomes.num_good / max(self.outcomes.span_s, 1e-9)

    @property
    def num_failed(self) -> int:
        return sum(count for end, count in self.outcomes.ends.items() if end not in ("stop", "length"))

    @property
    def num_too_long(self) -> int:
        """Requests with a longer prompt than the model takes."""
        return self.outcomes.ends["prompt_too_long"]

    @property
    def remote_share(self) -> float:
        remote = sum(self.placements[reason] for reason in REMOTE_REASONS)
        return remote / max(sum(self.placements.values()), 1)

    def utilisation(self, role: Role) -> float:
        return self.busy_s.get(role, 0.0) / max(self.worker_s.get(role, 0.0), 1e-9)


Progress = Callable[[int, float], None]  # requests that have ended, virtual seconds


class SimRun:
    """Sets a world up and lets it run."""

    def __init__(self, config: SimConfig, profile: WorkerProfile, workload: Workload, span_s: float) -> None:
        self._config = config
        self._profile = profile
        self._workload = workload
        self._span_s = max(span_s, 1e-3)

    def run(self, policy: PolicyName, split: Split, progress: Progress | None = None) -> RunResult:
        """`progress` is called now and then with how far it is."""
        config, profile, workload = self._config, self._profile, self._workload
        shares = workload.has_shared_blocks and config.prefix_caching
        page_tokens = config.page_tokens or (BLOCK_TOKENS if shares else profile.page_tokens)
        dispatch = DispatchConfig(
            policy=policy,
            slo=config.slo,
            placement=config.placement,
            migration=config.migration,
            queue_timeout_s=config.queue_timeout_s,
            request_timeout_s=config.request_timeout_s,
            max_queued_requests=config.max_queued_requests,
        )
        world = World(WorldConfig(dispatch, profile, page_tokens, shares, config.report_s, config.seed))
        fleet = SimFleet(world)
        fleet.start("prefill", split.num_prefill)
        fleet.start("decode", split.num_decode)
        result = RunResult(policy, split, world.outcomes)
        faults = SimFaults(config.faults, config.seed, world, fleet, self._span_s)
        watch = _Watch(world, fleet, result, self._span_s)
        if config.planner.enabled:
            _PlannerLoop(world, fleet, config.planner, result)
        began_s = time.process_time()
        countdown = PROGRESS_EVERY

        def look() -> bool:
            nonlocal countdown
            countdown -= 1
            if countdown <= 0:
                countdown = PROGRESS_EVERY
                if progress is not None:
                    progress(len(world.outcomes), world.clock.now_s)
            return False

        world.run(iter(workload), look if progress is not None else None)
        watch.close()
        result.cpu_s = time.process_time() - began_s
        result.rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        result.faults = faults.happened
        result.simulated_s = world.clock.now_s
        result.num_events = world.clock.num_planned
        network = world.network
        result.num_transfers, result.transfer_bytes = network.num_transfers, network.moved_bytes
        result.most_transfers = network.most_in_flight
        result.num_preemptions = world.num_preemptions + sum(w.engine.num_preemptions for w in world.workers.values())
        snapshot = world.dispatcher.snapshot(world.clock.now_s)
        result.num_moves = snapshot.totals.migrations["moved"]
        pauses = snapshot.totals.migration_pauses
        result.pause_s = pauses.total_s / max(sum(pauses.counts), 1)
        result.placements.update(snapshot.totals.placements)
        result.retries.update(snapshot.totals.retries)
        result.cached_share = snapshot.prefix_index.found_tokens / max(snapshot.totals.num_prompt_tokens, 1)
        return result


class _Watch:
    """Takes the samples."""

    def __init__(self, world: World, fleet: SimFleet, result: RunResult, span_s: float) -> None:
        self._world, self._fleet, self._result = world, fleet, result
        self._every_s = span_s / NUM_SAMPLES
        self._last_s = 0.0
        self._busy_s = dict.fromkeys(ROLES, 0.0)
        self._look()

    def _look(self, _: object = None) -> None:
        self._take()
        clock = self._world.clock
        # After the arrivals things change less and less.
        late = clock.now_s > self._every_s * NUM_SAMPLES
        self._every_s *= 1.1 if late else 1.0
        clock.at(clock.now_s + self._every_s, self._look)

    def close(self) -> None:
        self._take()

    def _take(self) -> None:
        world, now_s = self._world, self._world.clock.now_s
        spent_s = now_s - self._last_s
        ready = dict.fromkeys(ROLES, 0)
        for worker in world.workers.values():
            ready[worker.hello.role] += 1
        shares = {}
        for role in ROLES:
            busy_s = world.total_busy_s(role)
            lately_s = busy_s - self._busy_s[role]
            self._busy_s[role] = busy_s
            shares[role] = min(lately_s / max(spent_s * ready[role], 1e-9), 1.0) if spent_s and ready[role] else 0.0
            self._result.worker_s[role] = self._result.worker_s.get(role, 0.0) + spent_s * ready[role]
            self._result.busy_s[role] = busy_s
        self._last_s = now_s
        num_waiting = world.dispatcher.num_waiting
        self._result.samples.append(
            Sample(
                now_s,
                num_waiting,
                world.num_running - num_waiting,
                ready["prefill"],
                ready["decode"],
                shares["prefill"],
                shares["decode"],
            )
        )


class _PlannerLoop:
    """Asks the planner as the driver does, and does what it says."""

    def __init__(self, world: World, fleet: SimFleet, config: PlannerConfig, result: RunResult) -> None:
        self._world, self._fleet, self._config, self._result = world, fleet, config, result
        self._planner = load_planner(config)
        world.clock.at(config.interval_s, self._look)

    def _look(self, _: object) -> None:
        clock, fleet = self._world.clock, self._fleet
        now_s = clock.now_s
        decision = self._planner.decide(self._world.dispatcher.signals(now_s), fleet.state(), now_s)
        if not decision.is_hold:
            self._result.decisions.append(decision)
        for action in decision.actions:
            try:
                match action:
                    case AddWorkers(role, count):
                        _now(fleet.add(role, count))
                    case RemoveWorker(name):
                        _now(fleet.remove(name))
                    case SwitchRole(name, role):
                        _now(fleet.switch_role(name, role))
            except FleetError:
                break  # as in the driver: what cannot be done is decided anew at the next look
        clock.at(now_s + self._config.interval_s, self._look)


def _now(coroutine: Any) -> None:
    """Virtual time does not pass while a coroutine of the fleet runs: it waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("the simulated fleet waits for nothing")


def find_profile(name: str) -> WorkerProfile:
    """A shipped profile by name, or a file. Raises ProfileError."""
    for path in (PROFILES / f"{name}.json", Path(name).expanduser()):
        try:
            if path.exists():
                return WorkerProfile.read(path)
        except OSError:  # a name that is too long for one
            break
    known = ", ".join(sorted(one.stem for one in PROFILES.glob("*.json")))
    raise ProfileError(f"profile: {name[:80]!r} is neither a file nor one of {known}")
