"""Prometheus metrics of the prefix index."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slipstream.router.status.prefix_status import PrefixIndexStatus


def prefix_index_families(status: PrefixIndexStatus) -> Iterator[Metric]:
    """The size of the index, what workers report to it, and how good its predictions are: `confirmed` / `predicted`
    tokens is their precision, `confirmed` / `found` their recall."""
    yield GaugeMetricFamily("slipstream:prefix_index_blocks", "Blocks that some worker holds.", value=status.num_blocks)
    entries = GaugeMetricFamily("slipstream:prefix_index_entries", "Blocks, by worker and summed.", labels=["kind"])
    entries.add_metric(["held"], status.num_entries - status.num_expected)
    entries.add_metric(["expected"], status.num_expected)
    yield entries
    yield CounterMetricFamily("slipstream:prefix_index_messages", "Messages about blocks.", value=status.num_messages)
    yield CounterMetricFamily("slipstream:prefix_index_gaps", "Missing ones that were noticed.", value=status.num_gaps)
    yield CounterMetricFamily("slipstream:prefix_index_snapshots", "Snapshots.", value=status.num_snapshots)
    changes = CounterMetricFamily("slipstream:prefix_index_changes", "Blocks that workers reported.", labels=["kind"])
    changes.add_metric(["stored"], status.num_stored)
    changes.add_metric(["removed"], status.num_removed)
    changes.add_metric(["dropped"], status.num_dropped)
    yield changes
    tokens = CounterMetricFamily(
        "slipstream:prefix_index_tokens", "Prompt tokens cached where a prefill was placed.", labels=["kind"]
    )
    tokens.add_metric(["predicted"], status.predicted_tokens)
    tokens.add_metric(["found"], status.found_tokens)
    tokens.add_metric(["confirmed"], status.confirmed_tokens)
    yield tokens
