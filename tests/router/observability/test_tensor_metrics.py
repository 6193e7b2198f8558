"""The page of Triton's metrics, and its port."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.router.config.kserve_config import TensorMetricsConfig
from slipstream.router.instances.host_messages import ProcessUsage
from slipstream.router.instances.instance_port import HostUsage
from slipstream.router.instances.messages import StartInstance
from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.observability.tensor_metrics.instance_usage import instance_usage_families
from slipstream.router.observability.tensor_metrics.machine_families import add_machine_families
from slipstream.router.observability.tensor_metrics.machine_reading import MachineReader, MachineReading
from slipstream.router.observability.tensor_metrics.metric_lines import MetricLines
from slipstream.router.observability.tensor_metrics.tensor_metrics_page import TensorMetricsPage
from slipstream.router.observability.tensor_metrics.tensor_metrics_server import TensorMetricsServer
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.custom_metrics import CustomFamily, merged_families
from slipstream.router.tensors.infer_error import FailureReason
from slipstream.router.tensors.infer_service import ModelStatistics
from slipstream.router.tensors.latencies import LatencyHistogram, LatencySummaries, LatencySummary
from slipstream.router.tensors.version_metrics import CacheMetrics, VersionMetrics

NO_PORT = TensorMetricsConfig(port=0, cpu=False, gpu=False)


@dataclass
class Source:
    versions: list[VersionMetrics] = field(default_factory=list)
    families: list[CustomFamily] = field(default_factory=list)
    cache: CacheMetrics | None = None

    def version_metrics(self) -> Sequence[VersionMetrics]:
        return self.versions

    def custom_families(self) -> Sequence[CustomFamily]:
        return self.families

    def cache_metrics(self) -> CacheMetrics | None:
        return self.cache


def rendered(source: Source, config: TensorMetricsConfig = NO_PORT) -> str:
    with RegionPool() as pool:
        return TensorMetricsPage(source, pool, config).render().decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """As Prometheus reads them. (Its Python parser gives each counter a suffix.)"""
    return {
        (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def version(**changes: object) -> VersionMetrics:
    statistics = ModelStatistics("m", "2", inference_count=7, execution_count=3)
    statistics.durations.success.add(5_000_999, 4)
    statistics.durations.queue.add(1_500, 4)
    statistics.durations.cache_hit.add(2_000, 2)
    return VersionMetrics(statistics, **changes)  # type: ignore[arg-type]


OF_MODEL = (("model", "m"), ("version", "2"))


def test_counters_of_a_model_have_tritons_names_and_no_suffix() -> None:
    text = rendered(Source([version(failures={FailureReason.BACKEND: 2}, num_pending=5, load_s=1.25)]))
    found = samples(text)
    assert found["nv_inference_count", OF_MODEL] == 7
    assert found["nv_inference_exec_count", OF_MODEL] == 3
    assert found["nv_inference_request_success", OF_MODEL] == 4
    assert found["nv_inference_pending_request_count", OF_MODEL] == 5
    assert found["nv_model_load_duration_secs", OF_MODEL] == 1.25
    assert "_total{" not in text
    assert "# TYPE nv_inference_request_success counter\n" in text


def test_durations_are_whole_microseconds() -> None:
    found = samples(rendered(Source([version()])))
    assert found["nv_inference_request_duration_us", OF_MODEL] == 5000
    assert found["nv_inference_queue_duration_us", OF_MODEL] == 1


def test_durations_can_be_left_out() -> None:
    text = rendered(Source([version()]), TensorMetricsConfig(port=0, cpu=False, gpu=False, counter_latencies=False))
    assert "duration_us" not in text
    assert "nv_inference_count" in text


def test_failures_are_shown_for_every_reason() -> None:
    found = samples(rendered(Source([version(failures={FailureReason.REJECTED: 9})])))
    reasons = {
        dict(labels)["reason"]: value
        for (name, labels), value in found.items()
        if name == "nv_inference_request_failure"
    }
    assert reasons == {"REJECTED": 9, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}


def test_cache_counts_are_shown_of_models_that_use_it() -> None:
    assert "nv_cache_num_hits_per_model" not in rendered(Source([version()]))
    found = samples(rendered(Source([version(uses_response_cache=True)], cache=CacheMetrics(1000, 250, 3, 2, 1, 0))))
    assert found["nv_cache_num_hits_per_model", OF_MODEL] == 2
    assert found["nv_cache_util", ()] == 0.25
    assert found["nv_cache_num_lookups", ()] == 3


def test_summaries_have_the_quantiles_that_are_configured() -> None:
    summaries = LatencySummaries()
    config = TensorMetricsConfig(port=0, cpu=False, gpu=False, summary_quantiles=((0.5, 0.05), (0.99, 0.001)))
    text = rendered(Source([version(summaries=summaries)]), config)
    assert 'nv_inference_request_summary_us{model="m",version="2",quantile="0.5"} NaN' in text
    assert "nv_cache_hit_summary_per_model" not in text
    for value in range(100):
        summaries.request.add(value, now=math.inf)
    found = samples(rendered(Source([version(summaries=summaries)]), config))
    assert found["nv_inference_request_summary_us_count", OF_MODEL] == 100
    assert found["nv_inference_request_summary_us_sum", OF_MODEL] == 4950
    assert found["nv_inference_request_summary_us", (OF_MODEL[0], ("quantile", "0.99"), OF_MODEL[1])] == 99


def test_quantiles_are_of_the_last_minute_and_the_count_is_of_all() -> None:
    summary = LatencySummary()
    summary.add(1000.0, now=10.0)
    summary.add(1.0, now=65.0)
    assert summary.quantiles([0.5, 0.999], now=71.0) == [1.0, 1.0]
    assert summary.count == 2
    assert all(math.isnan(value) for value in summary.quantiles([0.5], now=200.0))


def test_histogram_buckets_include_the_smaller_ones() -> None:
    histogram = LatencyHistogram()
    for ms in (100, 101, 9000):
        histogram.add(ms)
    found = samples(rendered(Source([version(first_responses=histogram)])))
    name = "nv_inference_first_response_histogram_ms"
    buckets = {dict(labels)["le"]: value for (of, labels), value in found.items() if of == f"{name}_bucket"}
    assert buckets == {"100": 1, "500": 2, "2000": 2, "5000": 2, "+Inf": 3}
    assert found[f"{name}_sum", OF_MODEL] == 9201


def wire(kind: str, **metric: object) -> dict[str, object]:
    return {
        "name": "my_metric",
        "description": 'a "b"\nc',
        "kind": kind,
        "metrics": [{"labels": {"l": 'x"\n'}, **metric}],
    }


def test_custom_metrics_of_instances_are_added_up() -> None:
    of_two = [CustomFamily.of_wire(wire("counter", value=value)) for value in (1.5, 2)]
    found = samples(rendered(Source(families=of_two)))
    assert [value for (name, _), value in found.items() if name.startswith("my_metric")] == [3.5]
    [gauge] = merged_families(CustomFamily.of_wire(wire("gauge", value=value)) for value in (5, -2))
    assert [metric.value for metric in gauge.metrics.values()] == [-2]
    histograms = [CustomFamily.of_wire(wire("histogram", buckets=[1, 5], counts=[1, 0, 2], sum=20)) for _ in range(2)]
    text = rendered(Source(families=histograms))
    assert re.search(r'my_metric_bucket\{l="x\\"\\n",le="\+Inf"\} 6\n', text)
    assert re.search(r'my_metric_bucket\{l="x\\"\\n",le="5"\} 2\n', text)


def test_custom_metrics_do_not_pass_for_the_servers() -> None:
    family = CustomFamily.of_wire({**wire("counter", value=1), "name": "nv_inference_count"})
    assert "nv_inference_count" not in rendered(Source(families=[family]))


@pytest.mark.parametrize(
    "changes",
    [{"name": "a b"}, {"kind": "summary"}, {"metrics": [{"labels": {"a-b": "x"}, "value": 1}]}],
    ids=["name", "kind", "label"],
)
def test_custom_metrics_that_prometheus_cannot_read_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        CustomFamily.of_wire({**wire("counter", value=1), **changes})


def test_a_histogram_needs_a_count_for_each_bucket() -> None:
    with pytest.raises(ValueError, match="one more than the 2 buckets, got 2"):
        CustomFamily.of_wire(wire("histogram", buckets=[1, 5], counts=[1, 0], sum=20))


def test_gpus_are_told_apart_by_their_uuid() -> None:
    lines = MetricLines()
    gpu = GpuReading("GPU-1", 0.5, 1000, 10, 30.5, None, 7.0)
    add_machine_families(lines, MachineReading(gpus=(gpu,)))
    found = samples(lines.text().decode())
    assert found["nv_gpu_utilization", (("gpu_uuid", "GPU-1"),)] == 0.5
    assert found["nv_gpu_power_usage", (("gpu_uuid", "GPU-1"),)] == 30.5
    assert not any(name in ("nv_gpu_power_limit", "nv_cpu_utilization") for name, _ in found)


def test_the_gpus_of_other_machines_are_shown_and_each_once() -> None:
    here, there = GpuReading("GPU-1", 0.5), [GpuReading("GPU-1", 0.4), GpuReading("GPU-2", 0.2)]

    def shown(config: TensorMetricsConfig) -> dict[str, float]:
        with RegionPool() as pool:
            page = TensorMetricsPage(Source(), pool, config, lambda: there)
            page._machine = MachineReading(gpus=(here,))
            found = samples(page.render().decode())
        return {labels[0][1]: value for (name, labels), value in found.items() if name == "nv_gpu_utilization"}

    assert shown(replace(NO_PORT, gpu=True)) == {"GPU-1": 0.5, "GPU-2": 0.2}
    assert shown(NO_PORT) == {}


def test_processes_of_instances_and_of_their_hosts_are_told_apart() -> None:
    start = StartInstance("1a2b", "m_0_0", "m", "3", "python", "", "", "", {}, "KIND_CPU", 0)
    families = instance_usage_families(
        [
            HostUsage("a", ProcessUsage("", 1.5, 100), ((start, ProcessUsage("1a2b", 2.5, 200)),)),
            HostUsage("b", None, ()),
        ]
    )
    shown = {(one.name, tuple(one.labels.items())): one.value for family in families for one in family.samples}
    instance = (("host", "a"), ("model", "m"), ("version", "3"), ("instance", "m_0_0"))
    assert shown == {
        ("slipstream:instance_host_cpu_seconds_total", (("host", "a"),)): 1.5,
        ("slipstream:instance_host_resident_memory_bytes", (("host", "a"),)): 100,
        ("slipstream:instance_cpu_seconds_total", instance): 2.5,
        ("slipstream:instance_resident_memory_bytes", instance): 200,
    }


def test_the_machine_is_read() -> None:
    reader = MachineReader(reads_cpu=True, reads_gpu=True)
    reading = reader.read()
    reader.close()
    assert reading.cpu_utilization is not None
    assert 0 <= reading.cpu_utilization <= 1
    assert 0 < reading.memory_used_bytes < reading.memory_total_bytes


def test_the_port_serves_the_page_and_nothing_else() -> None:
    async def get(port: int, path: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        return answer

    async def check() -> None:
        config = TensorMetricsConfig(port=0, interval_s=0.01)
        with RegionPool() as pool:
            page = TensorMetricsPage(Source([version()]), pool, config)
            await page.start()
            server = TensorMetricsServer(config, page, host="127.0.0.1")
            port = await server.start()
            async with asyncio.timeout(10):
                while "nv_cpu_utilization" not in (answer := await get(port, "/metrics")):
                    await asyncio.sleep(0.01)
            assert answer.startswith("HTTP/1.1 200")
            assert (await get(port, "/other")).startswith("HTTP/1.1 404")
            await server.stop()
            await page.stop()

    asyncio.run(check())
