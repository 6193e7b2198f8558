"""Prometheus metrics of the versions of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from slipstream.router.status.version_status import VersionCounts, VersionStatus

MAX_VERSIONS = 8  # only the latest versions are shown, as a time series for each one ever served would be too many
OTHERS = "(others)"


def version_families(versions: Sequence[VersionStatus]) -> Iterator[Metric]:
    """The metrics of each version. `outcome` is the finish reason or the kind of error."""
    workers = GaugeMetricFamily(
        "slipstream:version_workers", "Connected workers that take new work.", labels=["version", "role"]
    )
    weights = GaugeMetricFamily("slipstream:version_weight", "Share in the split, if there is one.", labels=["version"])
    ends = CounterMetricFamily("slipstream:version_requests", "Ended requests.", labels=["version", "outcome"])
    failed = CounterMetricFamily(
        "slipstream:version_failed_attempts", "Attempts that a version may be to blame for.", labels=["version"]
    )
    ttft = SummaryMetricFamily(
        "slipstream:version_ttft_seconds", "Seconds from being queued to the first token.", labels=["version"]
    )
    itl = SummaryMetricFamily(
        "slipstream:version_itl_seconds", "Mean seconds between tokens, one for each answer.", labels=["version"]
    )
    for version in versions[-MAX_VERSIONS:]:
        workers.add_metric([version.name, "prefill"], version.num_prefill)
        workers.add_metric([version.name, "decode"], version.num_decode)
        if version.weight is not None:
            weights.add_metric([version.name], version.weight)
    for name, counts in shown_counts(versions).items():
        for outcome, count in sorted(counts.ends.items()):
            ends.add_metric([name, outcome], count)
        failed.add_metric([name], counts.num_failed_attempts)
        ttft.add_metric([name], counts.num_first_tokens, counts.ttft_s)
        itl.add_metric([name], counts.num_itls, counts.itl_s)
    yield from (workers, weights, ends, failed, ttft, itl)


def shown_counts(versions: Sequence[VersionStatus]) -> dict[str, VersionCounts]:
    """The counts of the latest versions by name, and of all others summed up."""
    counts: dict[str, VersionCounts] = {}
    for number, version in enumerate(reversed(versions)):
        into = counts.setdefault(version.name if number < MAX_VERSIONS else OTHERS, VersionCounts())
        into.num_failed_attempts += version.counts.num_failed_attempts
        into.num_first_tokens += version.counts.num_first_tokens
        into.ttft_s += version.counts.ttft_s
        into.num_itls += version.counts.num_itls
        into.itl_s += version.counts.itl_s
        into.ends.update(version.counts.ends)
    return counts
