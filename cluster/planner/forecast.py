"""What one look at the cluster is planned for: what comes and runs now, and what will come until a change made now has
taken effect."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.planner.model.corrections import Corrections
from slipstream.cluster.planner.model.demand import DemandWatch, backlog_of, demand_of, mix_window
from slipstream.cluster.planner.model.queueing_model import Demand, Outlook, WorkerModel, outlook
from slipstream.cluster.planner.model.running_answers import RunningAnswers, running_of
from slipstream.cluster.planner.model.worker_models import worker_models
from slipstream.cluster.planner.pool_options import Pools
from slipstream.router.status.load_signals import Signals

NOTHING = Demand(0.0, (1.0,), 1.0, ())


@dataclass(frozen=True, slots=True)
class Forecast:
    """`per_s` requests a second come and `backlog` more wait: `seen` is the demand of those that come, `planned` the
    one to plan for."""

    prefill: WorkerModel
    decode: WorkerModel
    running: RunningAnswers
    per_s: float
    backlog: float
    seen: Demand
    planned: Demand

    def outlook(self, pools: Pools, factor: float = 1.0) -> Outlook:
        """What the pools would make of what is planned for, or of so many times as much."""
        return outlook(pools.num_prefill, pools.num_decode, self.prefill, self.decode, self.planned.times(factor))

    def outlook_now(self, pools: Pools, local_share: float | None) -> Outlook:
        """What the pools should make of what comes now, where that share of the prompts is computed on decode
        workers."""
        return outlook(pools.num_prefill, pools.num_decode, self.prefill, self.decode, self.seen, local_share)

    def growth(self, per_s: float) -> float:
        """How many times what is planned for `per_s` requests a second would be."""
        return per_s / self.planned.per_s if self.planned.per_s > 0.0 else 1.0


def forecast_of(signals: Signals, corrections: Corrections, watch: DemandWatch, lead_s: float) -> Forecast | None:
    """`lead_s` is how long a change takes. None as long as no worker has been measured."""
    models = worker_models(signals, corrections)
    as_measured = worker_models(signals, Corrections())  # by the workers' own word, which is of their batches
    if models is None or as_measured is None:
        return None
    per_s = max(watch.rate(0.0), 0.0)
    mix, backlog = mix_window(signals), backlog_of(signals)
    running = running_of(signals, as_measured[1], mix.isl.mean if mix is not None else 1.0)
    least_osl = running.osl(max(per_s, signals.short.offered_per_s))
    seen = demand_of(signals, per_s, least_osl=least_osl) or NOTHING
    planned = demand_of(signals, max(watch.rate(lead_s), per_s), backlog, least_osl, lead_s) or seen
    return Forecast(*models, running, per_s, backlog, seen, planned)


def figures(forecast: Forecast, trend: float, corrections: Corrections) -> tuple[tuple[str, float], ...]:
    """What a decision says of the load it was made for. `trend` is in requests a second, a second."""
    planned = forecast.planned
    return (
        ("requests_per_s", round(forecast.per_s, 3)),
        ("planned_per_s", round(planned.per_s, 3)),
        ("trend_per_s2", round(trend, 5)),
        ("backlog", round(forecast.backlog, 1)),
        ("isl", round(planned.isl, 1)),
        ("osl", round(planned.osl, 1)),
        ("cached_share", round(planned.cached_share, 3)),
        ("burstiness", round(planned.burstiness, 2)),
        ("correction_prefill", round(corrections.prefill, 3)),
        ("correction_decode", round(corrections.decode, 3)),
    )
