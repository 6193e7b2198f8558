"""Prometheus metrics of the steps that workers compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric

from slipstream.router.protocol.messages import STEP_SEQUENCES, STEP_TOKENS, StepBuckets
from slipstream.router.status.status import WorkerStatus

STEP_COUNTERS = ("step_sequences", STEP_SEQUENCES.prefix, STEP_TOKENS.prefix)  # how the names begin that are shown here


def step_families(workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    """How many tokens and how many sequences there are in a step, of each worker that counts them."""
    labels = ["worker", "role"]
    tokens = HistogramMetricFamily(
        "vllm:iteration_tokens_total", "Tokens of each step of a worker, of prompts and of outputs.", labels=labels
    )
    sequences = HistogramMetricFamily(
        "slipstream:iteration_sequences", "Sequences of each step of a worker.", labels=labels
    )
    for worker in workers:
        counters = dict(worker.stats.counters) if worker.stats is not None else {}
        if "step_sequences" not in counters:
            continue
        who = [worker.peer.name, worker.role]
        for family, buckets, total in (
            (tokens, STEP_TOKENS, "computed_tokens"),
            (sequences, STEP_SEQUENCES, "step_sequences"),
        ):
            family.add_metric(who, cumulative(counters, buckets), counters.get(total, 0.0))
    yield from (tokens, sequences)


def cumulative(counters: Mapping[str, float], buckets: StepBuckets) -> list[tuple[str, float]]:
    """The buckets as Prometheus wants them. A worker leaves out those that are empty."""
    so_far, found = 0.0, []
    for bound in (*map(str, buckets.bounds), "inf"):
        so_far += counters.get(f"{buckets.prefix}{bound}", 0.0)
        found.append(("+Inf" if bound == "inf" else str(float(bound)), so_far))
    return found
