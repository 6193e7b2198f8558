"""What the admin API tells of the planner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slipstream.cluster.admin_api.driver_parts import FleetView
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.router.observability.metrics_page import CONTENT_TYPE

MAX_LIMIT = 1000


def planner_routes(decisions: DecisionLog | None, fleet: FleetView, further: Sequence[Collector] = ()) -> APIRouter:
    """`decisions` None: no planner is enabled. The page of metrics has those of the `further` collectors as well."""
    routes = APIRouter(tags=["planner"])

    @routes.get("/v1/planner/decisions", summary="What the planner decided lately, and why")
    async def latest(
        last: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many, the last one first.")] = 20,
        changes: Annotated[bool, Query(description="Only those that changed something.")] = False,
    ) -> dict[str, Any]:
        found = decisions.latest(last, changes_only=changes) if decisions is not None else []
        return {"enabled": decisions is not None, "decisions": [one.as_dict() for one in found]}

    registry = CollectorRegistry(auto_describe=False)
    for collector in (PlannerPage(decisions, fleet), *further):
        registry.register(collector)

    @routes.get("/metrics", summary="Planner, fleet and model files in Prometheus' text form", response_class=Response)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return routes


class PlannerPage(Collector):
    """`slipstream:planner_*` and what is wanted of each role."""

    def __init__(self, decisions: DecisionLog | None, fleet: FleetView) -> None:
        self._decisions = decisions
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        state = self._fleet.state()
        wanted = GaugeMetricFamily("slipstream:fleet_workers", "Worker groups wanted.", labels=["role"])
        wanted.add_metric(["prefill"], state.num_prefill)
        wanted.add_metric(["decode"], state.num_decode)
        yield wanted
        if len(self._fleet.models) > 1:
            yield self._of_each_model()
        if self._decisions is not None:
            yield from planner_families(self._decisions)

    def _of_each_model(self) -> Metric:
        name, what = "slipstream:fleet_model_workers", "Worker groups wanted of each model, where there are several."
        wanted = GaugeMetricFamily(name, what, labels=["model_name", "role"])
        for model in self._fleet.models:
            state = self._fleet.of_model(model).state()
            wanted.add_metric([model, "prefill"], state.num_prefill)
            wanted.add_metric([model, "decode"], state.num_decode)
        return wanted


def planner_families(log: DecisionLog) -> Iterator[Metric]:
    decided = CounterMetricFamily("slipstream:planner_decisions", "Looks of the planner.", labels=["reason"])
    for reason, count in sorted(log.num_by_reason.items()):
        decided.add_metric([reason], count)
    yield decided
    actions = CounterMetricFamily("slipstream:planner_actions", "Workers added, removed, switched.", labels=["action"])
    for action, count in sorted(log.num_actions.items()):
        actions.add_metric([action], count)
    yield actions
    yield CounterMetricFamily("slipstream:planner_failed_actions", "Refused by the cluster.", value=log.num_failed)
    yield CounterMetricFamily("slipstream:planner_errors", "Looks that came to nothing.", value=log.num_errors)
    if log.last is None:
        return
    by_model = ["model_name"] if any(log.latest_of) else []
    seen = GaugeMetricFamily("slipstream:planner_seen", "The load that was planned for.", labels=[*by_model, "figure"])
    for model, record in log.latest_of.items():
        for figure, value in record.decision.seen:
            seen.add_metric([*([model] if by_model else []), figure], value)
    yield seen
    held = GaugeMetricFamily(
        "slipstream:planner_held_seconds",
        "For how long the planner has been held back in a row, by the latest reason; 0: it is not.",
        labels=[*by_model, "reason"],
    )
    for model, record in log.latest_of.items():
        held.add_metric([*([model] if by_model else []), record.decision.reason], log.held_s(model))
    yield held
    predicted = GaugeMetricFamily(
        "slipstream:planner_predicted_attainment",
        "Share of requests that the alternatives would serve in time.",
        labels=[*by_model, "num_prefill", "num_decode"],
    )
    for model, record in log.latest_of.items():
        for one in record.decision.alternatives:
            pools = [str(one.num_prefill), str(one.num_decode)]
            predicted.add_metric([*([model] if by_model else []), *pools], one.attainment)
    yield predicted
