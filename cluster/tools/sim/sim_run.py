"""One run: a workload on a number of workers under one policy, and what came of it."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.planner.pool_prices import PoolPrices
from slipstream.cluster.planner.shared.model_share import ModelShare, WorkerNeeds
from slipstream.cluster.planner.shared.shared_loading import load_shared_planner
from slipstream.cluster.tools.sim.hardware.hardware_profile import ProfileError, WorkerProfile
from slipstream.cluster.tools.sim.hardware.roofline import PROFILES
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.run_watch import RunWatch
from slipstream.cluster.tools.sim.sim_config import SimConfig, Split
from slipstream.cluster.tools.sim.sim_faults import SimFaults
from slipstream.cluster.tools.sim.sim_fleet import SimModelFleet
from slipstream.cluster.tools.sim.sim_model import SimModelConfig
from slipstream.cluster.tools.sim.sim_planner import ModelsPlannerLoop, PlannerLoop
from slipstream.cluster.tools.sim.sim_world import Machines, World, WorldConfig, run_worlds
from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS
from slipstream.cluster.tools.workload.workload import Workload, open_workload
from slipstream.router.config.router_config import DispatchConfig, PolicyName
from slipstream.router.protocol.messages import ROLES

PROGRESS_EVERY = 2000  # events
SEED_STEP = 7_919  # between the workloads of the models, so that they share no random numbers

Progress = Callable[[int, float], None]  # requests that have ended, virtual seconds


@dataclass(frozen=True, slots=True)
class SimModel:
    """A model, what its workers are, and what is asked of it."""

    config: SimModelConfig
    profile: WorkerProfile
    workload: Workload

    @property
    def price_per_hour(self) -> float | None:
        """Of a worker."""
        price = self.config.price_per_hour
        return self.profile.price_per_hour if price is None else price

    @property
    def prices(self) -> PoolPrices:
        return PoolPrices(self.price_per_hour, self.price_per_hour)

    @property
    def share(self) -> ModelShare:
        """What a planner of several models is to know of it."""
        config, needs = self.config, WorkerNeeds(self.profile.gpus)
        return ModelShare(config.name, config.weight, config.min_workers, needs, needs, self.prices)


class ModelsRun:
    """Sets up a world for each model, on common machines, and lets them run."""

    def __init__(self, config: SimConfig, models: Sequence[SimModel], span_s: float) -> None:
        self._config = config
        self._models = models
        self._span_s = max(span_s, 1e-3)

    def run(self, policy: PolicyName, splits: Sequence[Split], progress: Progress | None = None) -> list[RunResult]:
        """The results of all models, which begin with these workers. `progress` is called now and then with how far it
        is."""
        config, clock, machines = self._config, VirtualClock(), Machines()
        worlds = {model.config.name: self.world(model, policy, clock, machines) for model in self._models}
        fleet = SimModelFleet(worlds, config.budget.workers)
        results: dict[str, RunResult] = {}
        for (name, world), model, split in zip(worlds.items(), self._models, splits, strict=True):
            own = fleet.of_model(name)
            own.start("prefill", split.num_prefill)
            own.start("decode", split.num_decode)
            results[name] = RunResult(policy, split, world.outcomes, model=name, price_per_hour=model.price_per_hour)
        faults = SimFaults(config.faults, config.seed, clock, fleet, self._span_s)
        watches = [RunWatch(world, results[name], self._span_s) for name, world in worlds.items()]
        if config.planner.enabled and len(worlds) > 1:
            shares = [model.share for model in self._models]
            planner = load_shared_planner(config.planner, shares, config.budget)
            ModelsPlannerLoop(worlds, fleet, planner, config.planner.interval_s, results)
        elif config.planner.enabled:
            (model,) = self._models
            name, planner_of_one = model.config.name, load_planner(config.planner, model.prices)
            PlannerLoop(worlds[name], fleet.of_model(name), planner_of_one, config.planner.interval_s, results[name])
        began_s = time.process_time()
        countdown = PROGRESS_EVERY

        def look() -> bool:
            nonlocal countdown
            countdown -= 1
            if countdown <= 0:
                countdown = PROGRESS_EVERY
                if progress is not None:
                    progress(sum(len(world.outcomes) for world in worlds.values()), clock.now_s)
            return False

        for world, model in zip(worlds.values(), self._models, strict=True):
            world.begin(iter(model.workload))
        run_worlds(list(worlds.values()), look if progress is not None else None)
        for watch in watches:
            watch.close()
        cpu_s = time.process_time() - began_s
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for name, world in worlds.items():
            result = results[name]
            result.cpu_s, result.rss_bytes = cpu_s, rss_bytes
            result.faults = faults.happened
            result.paid_s = sum(fleet.worker_s(name, role, clock.now_s) for role in ROLES)
            _take_counts(world, result)
        return list(results.values())

    def world(self, model: SimModel, policy: PolicyName, clock: VirtualClock, machines: Machines) -> World:
        """Of one model, without workers and requests."""
        config, profile = self._config, model.profile
        shares = model.workload.has_shared_blocks and config.prefix_caching
        page_tokens = model.config.page_tokens or config.page_tokens or (BLOCK_TOKENS if shares else 0)
        dispatch = DispatchConfig(
            policy=policy,
            slo=model.config.slo or config.slo,
            placement=config.placement,
            migration=config.migration,
            retention=config.retention,
            queue_timeout_s=config.queue_timeout_s,
            request_timeout_s=config.request_timeout_s,
            max_queued_requests=config.max_queued_requests,
        )
        sizes = WorldConfig(dispatch, profile, page_tokens or profile.page_tokens, shares, config.report_s, config.seed)
        return World(sizes, clock, machines)


class SimRun:
    """A run of a single model."""

    def __init__(self, config: SimConfig, profile: WorkerProfile, workload: Workload, span_s: float) -> None:
        self._run = ModelsRun(config, [SimModel(SimModelConfig(profile.name), profile, workload)], span_s)

    def run(self, policy: PolicyName, split: Split, progress: Progress | None = None) -> RunResult:
        """`progress` is called now and then with how far it is."""
        (result,) = self._run.run(policy, [split], progress)
        return result


def _take_counts(world: World, result: RunResult) -> None:
    """What world, network and dispatcher have counted."""
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


def open_models(config: SimConfig) -> list[SimModel]:
    """The models of the configuration with profiles and workloads, or its single one. Raises ProfileError, TraceError
    or ValueError."""
    if not config.models:
        workload = open_workload(config.workload, config.requests, config.speed, config.seed)
        workload = workload if config.seconds is None else workload.within(config.seconds)
        profile = find_profile(config.profile)
        return [SimModel(SimModelConfig(profile.name), profile, workload)]
    models = []
    for number, one in enumerate(config.models):
        source, seed = one.workload or config.workload, config.seed + (number * SEED_STEP if one.workload else 0)
        workload = open_workload(source, one.requests or config.requests, config.speed, seed)
        workload = workload if config.seconds is None else workload.within(config.seconds)
        models.append(
            SimModel(
                one,
                find_profile(one.profile or config.profile),
                workload if one.workload else workload.of_model(one.name),
            )
        )
    _check_names(models)
    return models


def _check_names(models: Sequence[SimModel]) -> None:
    """Raises ValueError where a request of the common workload names no model of the configuration."""
    common = next((model.workload for model in models if model.workload.model is not None), None)
    known = {model.config.name for model in models}
    if common is None:
        return
    strange = {arrival.model for arrival in common.of_all()} - known
    if strange:
        raise ValueError(f"{common.name}: {min(strange)!r} is none of the models {', '.join(sorted(known))}")


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
