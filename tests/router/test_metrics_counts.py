"""The counting side of the metrics."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.access.access import Access
from slipstream.router.generation import Usage
from slipstream.router.history import Timeline
from slipstream.router.messages import Stats
from slipstream.router.metrics import FrontMetrics, Histogram
from slipstream.router.metrics_page import MetricsPage, kv_usage
from slipstream.router.status import Snapshot, Totals, WorkerStatus


def worker(role: str, *, free: int, num_pages: int = 100) -> WorkerStatus:
    stats = Stats(0, 0, (("free", free), ("cached", 10), ("active", num_pages - free - 10)), ())
    return WorkerStatus(PeerId("w", 1), role, 1, 1, False, 1.0, 0, num_pages, 8, 8, 8, 8, stats)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), max_size=30))
def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket(values: list[float]) -> None:
    histogram = Histogram([0.5, 1.0, 5.0])
    for value in values:
        histogram.observe(value)
    expected = [float(sum(value <= bound for value in values)) for bound in (0.5, 1.0, 5.0, 11.0)]
    assert [count for _, count in histogram.buckets()] == expected
    assert histogram.total == pytest.approx(sum(values))


def test_tokens_that_came_together_share_their_gap() -> None:
    metrics = FrontMetrics()
    meter = metrics.begin(time.monotonic())
    for count in (1, 4, 1):
        meter.tokens(count)
    assert sum(metrics.first_token_s.counts) == 1
    assert sum(metrics.next_token_s.counts) == 5
    assert metrics.num_output_tokens == 6


def test_tokens_that_come_with_the_first_have_gaps_too() -> None:
    metrics = FrontMetrics()
    meter = metrics.begin(time.monotonic())
    meter.tokens(3)
    assert (sum(metrics.first_token_s.counts), sum(metrics.next_token_s.counts)) == (1, 2)
    assert metrics.next_token_s.total == 0.0


def test_a_finished_request_counts_once_with_its_stages() -> None:
    metrics = FrontMetrics()
    meter = metrics.begin(time.monotonic())
    meter.tokens(2)
    timeline = Timeline(queued=1.0, placed=1.5, first_token=2.5, finished=4.5)
    meter.finish("stop", 2, Usage(30, 2, 16), timeline)
    assert metrics.ends == {"stop": 1}
    assert (metrics.num_prompt_tokens, metrics.num_cached_tokens) == (30, 16)
    assert (metrics.queue_s.total, metrics.prefill_s.total, metrics.decode_s.total) == (0.5, 1.0, 2.0)


def test_a_request_that_never_got_a_token_has_no_latencies() -> None:
    metrics = FrontMetrics()
    metrics.begin(time.monotonic()).finish("abort", 0, None, Timeline(queued=1.0))
    assert metrics.ends == {"abort": 1}
    for histogram in (metrics.first_token_s, metrics.next_token_s, metrics.mean_next_token_s, metrics.queue_s):
        assert sum(histogram.counts) == 0


def test_kv_usage_is_what_decode_workers_can_neither_give_nor_evict() -> None:
    def usage(*workers: WorkerStatus) -> float:
        return kv_usage(Snapshot({}, 0, {}, workers, Totals()))

    assert usage() == 0.0
    assert usage(worker("decode", free=90)) == 0.0
    assert usage(worker("decode", free=90), worker("decode", free=40), worker("prefill", free=0)) == 0.25


def test_the_page_is_valid_and_has_the_names_that_users_graph() -> None:
    snapshot = Snapshot({0: 2, -3: 1}, 5, {"queued": 3, "decode": 2}, (worker("decode", free=50),), Totals())
    page = MetricsPage("demo", FrontMetrics(), lambda: snapshot, lambda: 7, Access()).render().decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    counters = ("prompt_tokens", "generation_tokens", "request_success", "prefix_cache_queries", "prefix_cache_hits")
    histograms = (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_params_n",
    )
    for kind, names in (("gauge", gauges), ("counter", counters), ("histogram", histograms)):
        for name in names:
            family = families[f"vllm:{name}"]
            assert family.type == kind, name
            assert all(sample.labels["model_name"] == "demo" for sample in family.samples)
    assert families["vllm:num_requests_running"].samples[0].value == 2
    assert {s.labels["priority"]: s.value for s in families["slipstream:queue_depth"].samples} == {"0": 2, "-3": 1}
    assert families["slipstream:http_connections"].samples[0].value == 7


def test_clients_cannot_make_up_time_series_by_their_priorities() -> None:
    depth = {0: 1} | {sign * 10**power: 1 for sign in (1, -1) for power in range(1, 10)}
    snapshot = Snapshot(depth, 19, {"queued": 19}, (), Totals())
    page = MetricsPage("demo", FrontMetrics(), lambda: snapshot, lambda: 0, Access()).render().decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    shown = {sample.labels["priority"]: sample.value for sample in families["slipstream:queue_depth"].samples}
    assert shown == {"-8": 9, "0": 1, "8": 9}
