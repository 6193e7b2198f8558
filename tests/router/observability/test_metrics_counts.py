"""The counting side of the metrics."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.access.access import Access
from slipstream.router.observability.front_counts import MAX_VERSIONS, FrontMetrics, Histogram, ModelCounts
from slipstream.router.observability.metrics_page import MetricsPage
from slipstream.router.observability.worker_metrics import kv_usage
from slipstream.router.protocol.generation import Usage
from slipstream.router.protocol.messages import STEP_SEQUENCES, STEP_TOKENS, GpuUsage, RankUsage, Stats
from slipstream.router.requests.history import Timeline
from slipstream.router.status.status import Snapshot, Totals, WorkerStatus
from slipstream.workers.engine.step_counts import StepCounts


def rendered(front: FrontMetrics, snapshots: dict[str, Snapshot], *, num_connections: int = 0) -> str:
    """The page of models with these states."""
    page = MetricsPage(front, lambda: tuple(snapshots), snapshots.__getitem__, lambda: num_connections, Access())
    return asyncio.run(page.render()).decode()


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
    metrics = ModelCounts()
    meter = metrics.begin(time.monotonic())
    for count in (1, 4, 1):
        meter.tokens(count)
    latencies = metrics.latencies.unplaced
    assert (latencies.first_token_s.count, latencies.next_token_s.count) == (1, 5)
    assert metrics.num_output_tokens == 6


def test_tokens_that_come_with_the_first_have_gaps_too() -> None:
    metrics = ModelCounts()
    meter = metrics.begin(time.monotonic())
    meter.tokens(3)
    latencies = metrics.latencies.unplaced
    assert (latencies.first_token_s.count, latencies.next_token_s.count) == (1, 2)
    assert latencies.next_token_s.total == 0.0


def test_a_finished_request_counts_once_with_its_stages() -> None:
    metrics = ModelCounts()
    meter = metrics.begin(time.monotonic())
    meter.served_by("v1")
    meter.tokens(2)
    timeline = Timeline(queued=1.0, placed=1.5, first_token=2.5, finished=4.5)
    meter.finish("stop", 2, Usage(30, 2, 16), timeline)
    assert metrics.ends == {"stop": 1}
    assert (metrics.num_prompt_tokens, metrics.num_cached_tokens) == (30, 16)
    v1 = metrics.latencies.of("v1")
    assert (v1.queue_s.total, v1.prefill_s.total, v1.decode_s.total) == (0.5, 1.0, 2.0)
    assert not any(one.count for one in metrics.latencies.unplaced.histograms().values())


def test_a_request_that_never_got_a_token_has_no_latencies() -> None:
    metrics = ModelCounts()
    metrics.begin(time.monotonic()).finish("abort", 0, None, Timeline(queued=1.0))
    assert metrics.ends == {"abort": 1}
    counts = {name: histogram.count for name, histogram in metrics.latencies.unplaced.histograms().items()}
    assert counts == dict.fromkeys(counts, 0) | {"whole_s": 1}


def test_latencies_are_shown_for_a_bounded_number_of_versions() -> None:
    front = FrontMetrics(["demo"])
    for number in range(MAX_VERSIONS + 3):
        front.of("demo").latencies.of("v0").whole_s.observe(1.0)
        front.of("demo").latencies.of(f"v{number}").whole_s.observe(2.0)
    page = rendered(front, {"demo": Snapshot({}, 0, {}, (), Totals())})
    families = {family.name: family for family in text_string_to_metric_families(page)}
    samples = families["vllm:e2e_request_latency_seconds"].samples
    shown = {sample.labels["version"]: sample.value for sample in samples if sample.name.endswith("_count")}
    latest = [f"v{number}" for number in range(MAX_VERSIONS + 3)][1 - MAX_VERSIONS :]
    assert shown == {"v0": MAX_VERSIONS + 4, **dict.fromkeys(latest, 1)}


def test_steps_are_shown_as_histograms_of_each_worker() -> None:
    counts = StepCounts()
    for num_tokens, num_sequences in ((1, 1), (9, 2), (20_000, 3)):
        counts.add(num_tokens, num_sequences)
    counters = {"computed_tokens": 20_010, "step_sequences": 6, "steps": 3, **dict(counts.by_size())}
    stats = Stats(0, 0, (), tuple((name, float(value)) for name, value in counters.items()))
    snapshot = Snapshot({}, 0, {}, (replace(worker("decode", free=1), stats=stats), worker("decode", free=1)), Totals())
    page = rendered(FrontMetrics(), {"demo": snapshot})
    tokens = dict(zip(STEP_TOKENS.bounds, [1, 1, *[2] * 11], strict=True))
    sequences = dict(zip(STEP_SEQUENCES.bounds, [1, 2, *[3] * 9], strict=True))
    for name, counts_le, total in (
        ("vllm:iteration_tokens_total", tokens, 20_010),
        ("slipstream:iteration_sequences", sequences, 6),
    ):
        who = 'model_name="demo",role="decode",worker="w"'
        lines = [f'{name}_bucket{{le="{float(le)}",{who}}} {count}.0' for le, count in counts_le.items()]
        lines += [
            f'{name}_bucket{{le="+Inf",{who}}} 3.0',
            f"{name}_count{{{who}}} 3.0",
            f"{name}_sum{{{who}}} {total}.0",
        ]
        assert [line for line in page.splitlines() if line.startswith(name)] == lines
    assert "step_" not in page


def test_a_worker_that_counts_less_than_others_does_not_break_the_page() -> None:
    stats = Stats(0, 0, (), (("step_sequences", 6.0),))
    snapshot = Snapshot({}, 0, {}, (replace(worker("decode", free=1), stats=stats),), Totals())
    page = rendered(FrontMetrics(), {"demo": snapshot})
    assert 'slipstream:iteration_sequences_sum{model_name="demo",role="decode",worker="w"} 6.0' in page


def test_kv_usage_is_what_decode_workers_can_neither_give_nor_evict() -> None:
    def usage(*workers: WorkerStatus) -> float:
        return kv_usage(Snapshot({}, 0, {}, workers, Totals()))

    assert usage() == 0.0
    assert usage(worker("decode", free=90)) == 0.0
    assert usage(worker("decode", free=90), worker("decode", free=40), worker("prefill", free=0)) == 0.25


def test_the_page_is_valid_and_has_the_names_that_users_graph() -> None:
    snapshot = Snapshot({0: 2, -3: 1}, 5, {"queued": 3, "decode": 2}, (worker("decode", free=50),), Totals())
    page = rendered(FrontMetrics(), {"demo": snapshot}, num_connections=7)
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
        "request_params_best_of",
        "request_params_max_tokens",
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
    page = rendered(FrontMetrics(), {"demo": snapshot})
    families = {family.name: family for family in text_string_to_metric_families(page)}
    shown = {sample.labels["priority"]: sample.value for sample in families["slipstream:queue_depth"].samples}
    assert shown == {"-8": 9, "0": 1, "8": 9}


def test_series_of_several_models_stand_together_and_end_with_their_model() -> None:
    snapshots = {
        name: Snapshot({0: number}, number, {"queued": number}, (worker("decode", free=1),), Totals())
        for number, name in enumerate(("chat", "draft"), 1)
    }
    front = FrontMetrics(["chat", "draft"])
    front.of("chat").num_output_tokens = 3
    front.of("made up").num_output_tokens = 5

    def shown(name: str) -> dict[str, float]:
        families = {family.name: family for family in text_string_to_metric_families(rendered(front, snapshots))}
        return {sample.labels["model_name"]: sample.value for sample in families[name].samples}

    assert shown("slipstream:queue_depth") == {"chat": 1, "draft": 2}
    assert shown("vllm:num_requests_waiting") == {"chat": 1, "draft": 2}
    assert shown("vllm:generation_tokens") == {"chat": 3, "draft": 0}
    del snapshots["chat"]
    assert shown("vllm:generation_tokens") == {"draft": 0}
    assert "chat" not in rendered(front, snapshots)


def test_the_page_of_many_models_lets_the_event_loop_turn_and_a_model_go() -> None:
    async def main() -> None:
        snapshots = {f"m{number}": Snapshot({}, 0, {}, (), Totals()) for number in range(5)}
        page = MetricsPage(
            FrontMetrics(snapshots), lambda: tuple(snapshots), snapshots.__getitem__, lambda: 0, Access()
        )
        rendering = asyncio.create_task(page.render())
        await asyncio.sleep(0)
        assert not rendering.done()
        del snapshots["m4"]
        text = (await rendering).decode()
        assert 'model_name="m3"' in text
        assert "m4" not in text
        assert text.count("# TYPE slipstream:queue_depth gauge") == 1

    asyncio.run(main())


def test_what_each_rank_and_its_gpu_take_are_metrics_of_their_own() -> None:
    gpu = GpuUsage("GPU-7", 0.5, 10, 1000, None, 41)
    usage = (RankUsage(0, 2.5, 1024), RankUsage(1, 3.5, 2048, (gpu,)))
    stats = Stats(0, 0, (), (("steps", 3.0),), usage)
    snapshot = Snapshot({}, 0, {}, (replace(worker("decode", free=1), stats=stats),), Totals())
    page = rendered(FrontMetrics(), {"demo": snapshot})
    for rank, cpu_seconds, num_bytes in ((0, 2.5, 1024.0), (1, 3.5, 2048.0)):
        who = f'model_name="demo",rank="{rank}",role="decode",worker="w"'
        assert f"slipstream:worker_cpu_seconds_total{{{who}}} {cpu_seconds}\n" in page
        assert f"slipstream:worker_resident_memory_bytes{{{who}}} {num_bytes}\n" in page
    whose = 'gpu_uuid="GPU-7",model_name="demo",rank="1",role="decode",worker="w"'
    assert f"slipstream:worker_gpu_utilization{{{whose}}} 0.5\n" in page
    assert f"slipstream:worker_gpu_memory_used_bytes{{{whose}}} 10.0\n" in page
    assert f"slipstream:worker_gpu_temperature_celsius{{{whose}}} 41.0\n" in page
    assert "slipstream:worker_gpu_power_watts{" not in page  # it does not say
