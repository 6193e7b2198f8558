"""Counts what a version of a model does, as Triton's statistics extension and metrics show it."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from slipstream.router.status.version_status import LogMoments
from slipstream.router.tensors.infer_error import FailureReason
from slipstream.router.tensors.infer_service import BatchDurations, InferDurations, ModelStatistics, ResponseDurations
from slipstream.router.tensors.latencies import LatencyHistogram, LatencySummaries


class ComputeTimes(NamedTuple):
    """Of one execution, in nanoseconds."""

    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class StatisticsRecorder:
    """Of one version. `load_s` is how long its last load took, `times` are those of requests that succeeded.
    `summaries` and `first_responses`, of a decoupled model, are kept if they are asked for."""

    def __init__(
        self, model: str, version: str, *, keeps_summaries: bool = False, keeps_first_responses: bool = False
    ) -> None:
        self.statistics = ModelStatistics(model, version)
        self.failures: Counter[FailureReason] = Counter()
        self.load_s = 0.0
        self.times = LogMoments()
        self.summaries = LatencySummaries() if keeps_summaries else None
        self.first_responses = LatencyHistogram() if keeps_first_responses else None

    def executed(self, batch_size: int, times: ComputeTimes) -> None:
        """An execution of so many rows is over."""
        statistics = self.statistics
        statistics.last_inference_ms = time.time_ns() // 1_000_000
        statistics.execution_count += 1
        batch = statistics.by_batch_size.get(batch_size)
        if batch is None:
            batch = statistics.by_batch_size[batch_size] = BatchDurations()
        add_compute(batch, times)

    def succeeded(self, num_rows: int, total_s: float, queue_s: float, times: ComputeTimes) -> None:
        """A request was served by an execution."""
        statistics = self.statistics
        statistics.inference_count += num_rows
        durations = statistics.durations
        durations.success.add(nanoseconds(total_s))
        durations.queue.add(nanoseconds(queue_s))
        self.times.add(total_s)
        add_compute(durations, times)
        if self.summaries is not None:
            add_latencies(self.summaries, total_s, queue_s, times)

    def hit_cache(self, total_s: float, lookup_ns: int) -> None:
        """A request was served by the response cache, without an execution."""
        self.statistics.last_inference_ms = time.time_ns() // 1_000_000
        durations = self.statistics.durations
        durations.success.add(nanoseconds(total_s))
        durations.queue.add(0)
        durations.cache_hit.add(lookup_ns)
        if self.summaries is not None:
            now = time.monotonic()
            self.summaries.request.add(total_s * 1e6, now)
            self.summaries.queue.add(0, now)
            self.summaries.cache_hit.add(lookup_ns / 1e3, now)

    def missed_cache(self, lookup_and_insert_ns: int) -> None:
        self.statistics.durations.cache_miss.add(lookup_and_insert_ns)
        if self.summaries is not None:
            self.summaries.cache_miss.add(lookup_and_insert_ns / 1e3, time.monotonic())

    def responded_first(self, since_receipt_s: float) -> None:
        """A request to a decoupled model has its first response."""
        if self.first_responses is not None:
            self.first_responses.add(since_receipt_s * 1e3)

    def failed(self, total_s: float, reason: FailureReason) -> None:
        self.failures[reason] += 1
        self.statistics.durations.fail.add(nanoseconds(total_s))

    def response(self, index: int) -> ResponseDurations:
        """The counts of the n-th responses of a decoupled model."""
        responses, key = self.statistics.responses, str(index)
        found = responses.get(key)
        if found is None:
            found = responses[key] = ResponseDurations()
        return found


def add_compute(durations: BatchDurations | InferDurations, times: ComputeTimes) -> None:
    durations.compute_input.add(times.input_ns)
    durations.compute_infer.add(times.infer_ns)
    durations.compute_output.add(times.output_ns)


def add_latencies(summaries: LatencySummaries, total_s: float, queue_s: float, times: ComputeTimes) -> None:
    now = time.monotonic()
    summaries.request.add(total_s * 1e6, now)
    summaries.queue.add(queue_s * 1e6, now)
    summaries.compute_input.add(times.input_ns / 1e3, now)
    summaries.compute_infer.add(times.infer_ns / 1e3, now)
    summaries.compute_output.add(times.output_ns / 1e3, now)


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
