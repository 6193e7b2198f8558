"""The statistics of models, as a message."""

from __future__ import annotations

from collections.abc import Iterable

from tritonclient.grpc import service_pb2

from slipstream.router.tensors.infer_service import (
    BatchDurations,
    DurationCount,
    InferDurations,
    ModelStatistics,
    ResponseDurations,
)


def statistics_message(models: Iterable[ModelStatistics]) -> service_pb2.ModelStatisticsResponse:
    return service_pb2.ModelStatisticsResponse(model_stats=[_model(model) for model in models])


def _model(model: ModelStatistics) -> service_pb2.ModelStatistics:
    return service_pb2.ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=model.last_inference_ms,
        inference_count=model.inference_count,
        execution_count=model.execution_count,
        inference_stats=_requests(model.durations),
        batch_stats=[_batch(size, model.by_batch_size[size]) for size in sorted(model.by_batch_size)],
        response_stats={index: _response(durations) for index, durations in model.responses.items()},
    )


def _requests(durations: InferDurations) -> service_pb2.InferStatistics:
    return service_pb2.InferStatistics(
        success=_duration(durations.success),
        fail=_duration(durations.fail),
        queue=_duration(durations.queue),
        compute_input=_duration(durations.compute_input),
        compute_infer=_duration(durations.compute_infer),
        compute_output=_duration(durations.compute_output),
        cache_hit=_duration(durations.cache_hit),
        cache_miss=_duration(durations.cache_miss),
    )


def _batch(size: int, durations: BatchDurations) -> service_pb2.InferBatchStatistics:
    return service_pb2.InferBatchStatistics(
        batch_size=size,
        compute_input=_duration(durations.compute_input),
        compute_infer=_duration(durations.compute_infer),
        compute_output=_duration(durations.compute_output),
    )


def _response(durations: ResponseDurations) -> service_pb2.InferResponseStatistics:
    return service_pb2.InferResponseStatistics(
        compute_infer=_duration(durations.compute_infer),
        compute_output=_duration(durations.compute_output),
        success=_duration(durations.success),
        fail=_duration(durations.fail),
        empty_response=_duration(durations.empty_response),
        cancel=_duration(durations.cancel),
    )


def _duration(counted: DurationCount) -> service_pb2.StatisticDuration:
    return service_pb2.StatisticDuration(count=counted.count, ns=counted.ns)
