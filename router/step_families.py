"""Prometheus metrics of the steps that workers compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric

from slipstream.router.messages import STEP_SEQUENCES_LE, STEP_TOKENS_LE
from slipstream.router.status import WorkerStatus

STEP_COUNTERS = (
    "step_sequences",
    STEP_SEQUENCES_LE,
    STEP_TOKENS_LE,
)  # how the names begin that only these metrics show


def step_families(model: str, workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    """How many tokens and how many sequences there are in a step, of each worker that counts them."""
    labels = ["model_name", "worker", "role"]
    tokens = HistogramMetricFamily(
        "vllm:iteration_tokens_total", "Tokens of each step of a worker, of prompts and of outputs.", labels=labels
    )
    sequences = HistogramMetricFamily(
        "slipstream:iteration_sequences", "Sequences of each step of a worker.", labels=labels
    )
    for worker in workers:
        counters = dict(worker.stats.counters) if worker.stats is not None else {}
        who = [model, worker.peer.name, worker.role]
        for family, prefix, total in (
            (tokens, STEP_TOKENS_LE, "computed_tokens"),
            (sequences, STEP_SEQUENCES_LE, "step_sequences"),
        ):
            if total in counters:
                family.add_metric(who, cumulative(counters, prefix), counters[total])
    yield from (tokens, sequences)


def cumulative(counters: Mapping[str, float], prefix: str) -> list[tuple[str, float]]:
    """The buckets as Prometheus wants them. A worker leaves out those that are empty."""
    counts = {float(name.removeprefix(prefix)): count for name, count in counters.items() if name.startswith(prefix)}
    so_far, buckets = 0.0, []
    for bound in sorted({*counts, float("inf")}):
        so_far += counts.get(bound, 0.0)
        buckets.append(("+Inf" if bound == float("inf") else str(bound), so_far))
    return buckets
