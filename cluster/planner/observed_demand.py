"""What a planner has seen of the requests to a cluster, and what it has learned from that about its predictions."""

from __future__ import annotations

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.decision_context import DecisionContext
from slipstream.cluster.planner.forecast import Forecast
from slipstream.cluster.planner.model.corrections import Corrections
from slipstream.cluster.planner.model.demand import DemandWatch, backlog_of, has_shifted, is_answered, local_share_of
from slipstream.router.status.load_signals import Signals


class ObservedDemand:
    """Of one router after the other: each begins its windows anew, and what they do not show was not quiet."""

    def __init__(self) -> None:
        self.watch = DemandWatch()
        self.corrections = Corrections()
        self._router_id = ""
        self._busy_s: float | None = None  # when there was last something to do
        self._behind_since_s: float | None = None

    def see(self, signals: Signals, now: float) -> bool:
        """Takes up one look. Returns whether it is the first at another router."""
        is_other_router = signals.router_id != self._router_id
        if is_other_router:
            self._router_id = signals.router_id
            self.watch = DemandWatch()
            self._busy_s = now
            self._behind_since_s = None
        self.watch.see(signals, now)
        if self._busy_s is None or signals.num_waiting or signals.num_running or signals.short.num_arrivals:
            self._busy_s = now
        if backlog_of(signals) <= 0.0:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = now
        return is_other_router

    def quiet_s(self, now: float) -> float:
        """How long there has been no request."""
        return now - self._busy_s if self._busy_s is not None else 0.0

    @property
    def is_behind(self) -> bool:
        """Whether requests pile up."""
        return self._behind_since_s is not None

    def correct(self, context: DecisionContext, forecast: Forecast, changed_s: float, config: PlannerConfig) -> None:
        """Learns where what is seen is of these workers alone, and of this load: answers that finish now were begun
        when both were there. `changed_s`: when the workers changed last."""
        if has_shifted(context.signals):
            self.corrections.doubt()
            return
        if not is_answered(context.signals):
            return
        seen, running = forecast.seen, forecast.running
        answer_s = seen.osl * context.signals.short.itl_s.mean
        since_s = context.now - max(changed_s, self.watch.stepped_s) - context.signals.short.span_s
        if since_s < min(answer_s, config.horizon_s):
            return
        behind_s = context.now - self._behind_since_s if self._behind_since_s is not None else 0.0
        is_behind = behind_s >= context.signals.short.span_s
        if self.is_behind and not is_behind:
            return
        predicted = forecast.outlook_now(context.pools, local_share_of(context.signals))
        is_late = running.is_late(config.target_attainment)
        itl_s = running.gap_s * self.corrections.decode if is_late else predicted.itl_s
        self.corrections.learn(predicted, itl_s, seen.per_s, context.signals, is_behind)
