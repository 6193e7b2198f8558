"""What the page of metrics is told of the versions that are served."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.infer.model_instance import ModelInstance
from slipstream.router.infer.requests.statistics_recorder import ComputeTimes, StatisticsRecorder
from slipstream.router.infer.service_metrics import ServiceMetrics
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.tensors.infer_error import FailureReason
from slipstream.router.tensors.model_spec import ModelSpec
from tests.support.router.fake_tensor_service import tensor_model, vector

SPEC = tensor_model("m", [vector("A")], [vector("SUM")])


class Served(TensorService):
    """Serves one version, which has no instances."""

    def __init__(
        self, spec: ModelSpec, recorder: StatisticsRecorder, instances: tuple[ModelInstance, ...] = ()
    ) -> None:
        super().__init__()
        families = [family for instance in instances for family in instance.metrics.values()]
        self.runtime = SimpleNamespace(spec=spec, recorder=recorder, custom_families=families, num_waiting=3)

    def runtimes(self) -> Iterator[tuple[str, Any]]:
        yield "m", self.runtime


def test_a_version_has_its_counts_and_what_waits() -> None:
    recorder = StatisticsRecorder("m", "1")
    recorder.failed(0.5, FailureReason.REJECTED)
    recorder.load_s = 1.5
    [version] = ServiceMetrics(Served(SPEC, recorder)).version_metrics()
    assert version.statistics is recorder.statistics
    assert (dict(version.failures), version.num_pending, version.load_s) == ({FailureReason.REJECTED: 1}, 3, 1.5)
    assert (version.uses_response_cache, version.summaries, version.first_responses) == (False, None, None)


def test_summaries_are_kept_where_they_are_asked_for() -> None:
    recorder = StatisticsRecorder("m", "1", keeps_summaries=True)
    recorder.succeeded(1, 0.002, 0.0005, ComputeTimes(1_000, 2_000, 3_000))
    recorder.hit_cache(0.001, 4_000)
    recorder.missed_cache(5_000)
    [version] = ServiceMetrics(Served(SPEC, recorder)).version_metrics()
    summaries = version.summaries
    assert summaries is not None
    assert (summaries.request.count, summaries.request.sum_us) == (2, pytest.approx(3000))
    assert summaries.queue.sum_us == pytest.approx(500)
    assert [summaries.compute_input.sum_us, summaries.compute_infer.sum_us, summaries.compute_output.sum_us] == [
        1,
        2,
        3,
    ]
    assert [summaries.cache_hit.sum_us, summaries.cache_miss.sum_us] == [4, 5]


def test_first_responses_are_those_of_decoupled_models() -> None:
    recorder = StatisticsRecorder("m", "1", keeps_first_responses=True)
    recorder.responded_first(0.2)
    assert ServiceMetrics(Served(SPEC, recorder)).version_metrics()[0].first_responses is None
    decoupled = replace(SPEC, is_decoupled=True)
    histogram = ServiceMetrics(Served(decoupled, recorder)).version_metrics()[0].first_responses
    assert histogram is not None
    assert histogram.counts == [0, 1, 0, 0, 0]


def test_the_cache_is_shown_if_there_is_one() -> None:
    recorder = StatisticsRecorder("m", "1")
    recorder.hit_cache(0.1, 5)
    assert ServiceMetrics(Served(SPEC, recorder)).cache_metrics() is None
    cache = ServiceMetrics(Served(SPEC, recorder), ResponseCache(1000)).cache_metrics()
    assert cache is not None
    assert (cache.size_bytes, cache.used_bytes, cache.num_entries, cache.num_hits) == (1000, 0, 0, 1)


def test_families_of_instances_are_theirs_until_they_change_and_wrong_ones_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def family(name: str, value: float) -> dict[str, Any]:
        return {"name": name, "description": "d", "kind": "counter", "metrics": [{"labels": {}, "value": value}]}

    instance = ModelInstance("m_0", None, None)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        instance.metrics_changed([family("good", 1), family("not good", 1)])
    instance.metrics_changed([family("good", 2)])
    [shown] = ServiceMetrics(Served(SPEC, StatisticsRecorder("m", "1"), (instance,))).custom_families()
    assert [metric.value for metric in shown.metrics.values()] == [2]
    assert "name must be that of a metric, got 'not good'" in caplog.text
