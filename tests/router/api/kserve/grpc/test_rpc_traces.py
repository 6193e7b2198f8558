"""OpenTelemetry spans of requests that come by gRPC."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import pytest

from slipstream.router.infer.requests.request_record import InferHistory, InferRecord
from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.spans import spans_of
from slipstream.router.observability.tracing.tracer import TraceCounts, Tracer
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from tests.support.router.grpc_lab import grpc_lab, infer_request, refused, repeat_request
from tests.support.router.in_loop import in_loop

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Sink:
    """TraceSink."""

    traces: list[RequestTrace] = field(default_factory=list)
    counts: TraceCounts = field(default_factory=TraceCounts)

    def put(self, trace: RequestTrace) -> None:
        self.traces.append(trace)


def traced(*records: InferRecord) -> tuple[Tracer, Sink]:
    """A tracer that samples everything, of requests that have these records."""
    sink, history = Sink(), InferHistory(10)
    for record in records:
        history.add(record)
    tracer = Tracer(1.0, sink)
    tracer.trace_tensor_requests(history)
    return tracer, sink


def record_of(request_id: str) -> InferRecord:
    return InferRecord(request_id, "", "add_sub", "1", "", "", received_s=1.0, queued_s=1.1, batch_size=2)


@in_loop
async def test_a_request_has_a_span_below_its_callers_and_one_for_its_queue() -> None:
    tracer, sink = traced(record_of("mine"))
    metadata = [("x-request-id", "mine"), ("traceparent", f"00-{TRACE}-{CALLER}-01"), ("tracestate", "a=b")]
    async with grpc_lab(tracer=tracer) as lab:
        await lab.infer(infer_request(), metadata=metadata)
        assert lab.service.submitted[-1].request.trace_id == TRACE
    (trace,) = sink.traces
    whole, queued = spans_of(trace, lambda: "1" * 16)
    assert (trace.trace_id, whole.parent_id, queued.parent_id) == (TRACE, CALLER, whole.span_id)
    assert trace.parent is not None
    assert trace.parent.state == "a=b"
    assert whole.name == "inference.GRPCInferenceService/ModelInfer"
    assert whole.attributes["rpc.service"] == "inference.GRPCInferenceService"
    assert whole.attributes["rpc.method"] == "ModelInfer"
    assert whole.attributes["slipstream.request.id"] == "mine"
    assert whole.attributes["slipstream.request.num_rows"] == 2
    assert (whole.error, whole.begin_s < whole.end_s) == (None, True)


@in_loop
async def test_each_request_of_a_stream_has_a_trace() -> None:
    tracer, sink = traced()
    async with grpc_lab(tracer=tracer) as lab:
        await lab.all_responses(repeat_request(1), repeat_request(2), infer_request())
    assert len({trace.trace_id for trace in sink.traces}) == 3
    assert {trace.rpc for trace in sink.traces} == {"ModelStreamInfer"}


@in_loop
async def test_callers_that_do_not_sample_are_obeyed() -> None:
    tracer, sink = traced()
    async with grpc_lab(tracer=tracer) as lab:
        await lab.infer(infer_request(), metadata=[("traceparent", f"00-{TRACE}-{CALLER}-00")])
    assert sink.traces == []


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (InferErrorCode.INVALID_ARG, grpc.StatusCode.INVALID_ARGUMENT, 3),
        (InferErrorCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE, 14),
    ],
)
@in_loop
async def test_a_request_that_its_model_refuses_has_a_span_with_its_status(
    raised: InferErrorCode, status: grpc.StatusCode, code: int
) -> None:
    tracer, sink = traced()
    async with grpc_lab(tracer=tracer) as lab:
        lab.service.refusal = InferError("not now", raised)
        async with refused(status):
            await lab.infer(infer_request())
    (whole,) = spans_of(sink.traces[0], lambda: "1" * 16)
    assert len(sink.traces) == 1
    assert whole.begin_s <= whole.end_s
    assert (whole.attributes["rpc.grpc.status_code"], whole.attributes["error.type"]) == (code, status.name)
    assert whole.error == ("not now" if raised is InferErrorCode.UNAVAILABLE else None)


@in_loop
async def test_a_request_for_an_unknown_model_has_a_span_with_its_status() -> None:
    tracer, sink = traced()
    async with grpc_lab(tracer=tracer) as lab, refused(grpc.StatusCode.NOT_FOUND):
        await lab.infer(infer_request("nope"))
    (whole,) = spans_of(sink.traces[0], lambda: "1" * 16)
    assert whole.attributes["rpc.grpc.status_code"] == 5


def test_a_failed_request_has_its_error_at_its_span() -> None:
    record = record_of("r")
    record.ended(1.5, "failed", InferError("no"))
    trace = RequestTrace("ab", "cd", None, "", "/s/M", 1.0, 1.9, tensor_request=record, rpc="M")
    whole, *_ = spans_of(trace, lambda: "1" * 16)
    assert whole.error == "no"
