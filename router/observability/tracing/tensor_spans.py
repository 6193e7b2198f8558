"""The spans of a request to a tensor model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.router.infer.requests.request_record import InferRecord, StepRecord
from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.span import Attributes, Span

# Codes of gRPC that OpenTelemetry counts as errors of the server: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL,
# UNAVAILABLE and DATA_LOSS. Others are a client's mistake.
FAULTS_OF_SERVERS = frozenset({2, 4, 12, 13, 14, 15})


def tensor_attributes(record: InferRecord) -> Attributes:
    """Of the span of the whole request."""
    attributes: Attributes = {
        "slipstream.model": record.model,
        "slipstream.model.version": record.version,
        "slipstream.request.id": record.request_id,
        "slipstream.request.outcome": record.outcome,
        "slipstream.request.num_attempts": len(record.executions),
        "slipstream.request.num_rows": record.batch_size,
        "slipstream.request.num_responses": record.num_responses,
    }
    if record.tenant:
        attributes["slipstream.request.tenant"] = record.tenant
    if record.is_cache_hit:
        attributes["slipstream.cache_hit"] = True
    return attributes


def rpc_span(trace: RequestTrace) -> Span:
    """The span of a whole request that came by gRPC."""
    method = trace.path.removeprefix("/")
    attributes: Attributes = {
        "rpc.system": "grpc",
        "rpc.service": method.removesuffix(f"/{trace.rpc}"),
        "rpc.method": trace.rpc,
    }
    error, record = None, trace.tensor_request
    if record is not None:
        attributes |= tensor_attributes(record)
        error = record.error or "failed" if record.outcome == "failed" else None
    refusal = trace.rpc_refusal
    if refusal is not None:
        attributes |= {"rpc.grpc.status_code": refusal.code, "error.type": refusal.name}
        error = refusal.message if refusal.code in FAULTS_OF_SERVERS else None
    parent_id = trace.parent.span_id if trace.parent is not None else None
    return Span(method, "server", trace.span_id, parent_id, trace.begin_s, trace.end_s, attributes, error=error)


def tensor_spans(trace: RequestTrace, record: InferRecord, new_span_id: Callable[[], str]) -> Iterator[Span]:
    """Its time in the queue, and each execution, which lasts until the next one or the end; of an ensemble its steps,
    with the spans of their own requests below them."""
    yield from _request_spans(record, trace.span_id, trace.end_s, new_span_id)


def _request_spans(
    record: InferRecord, parent_id: str, open_until_s: float, new_span_id: Callable[[], str]
) -> Iterator[Span]:
    end_s = open_until_s if record.ended_s is None else record.ended_s
    if record.steps:
        for step in record.steps:
            yield from _step_spans(step, parent_id, end_s, new_span_id)
        return
    executions = record.executions
    begins_s = [execution.started_s for execution in executions]
    queued_until_s = begins_s[0] if begins_s else end_s
    yield Span("queued", "internal", new_span_id(), parent_id, record.queued_s, queued_until_s, {})
    ends_s = [*begins_s[1:], end_s] if executions else []  # none: the cache has answered, or it has left the queue
    for execution, until_s in zip(executions, ends_s, strict=True):
        is_last = execution is executions[-1]
        attributes: Attributes = {
            "slipstream.instance": execution.instance,
            "slipstream.batch.requests": execution.num_requests,
            "slipstream.batch.rows": execution.num_rows,
        }
        if is_last and record.compute_s is not None:
            for name, took_s in zip(("input", "infer", "output"), record.compute_s, strict=True):
                attributes[f"slipstream.compute.{name}_s"] = took_s
        error = record.error or None if is_last else "the instance was lost"
        begin_s = execution.started_s
        yield Span("executing", "internal", new_span_id(), parent_id, begin_s, until_s, attributes, error=error)


def _step_spans(
    step: StepRecord, parent_id: str, open_until_s: float, new_span_id: Callable[[], str]
) -> Iterator[Span]:
    record, span_id = step.record, new_span_id()
    attributes = tensor_attributes(record) | {
        "slipstream.step.reads": step.reads,
        "slipstream.step.writes": step.writes,
    }
    end_s = open_until_s if record.ended_s is None else record.ended_s
    yield Span("step", "internal", span_id, parent_id, record.queued_s, end_s, attributes, error=record.error or None)
    yield from _request_spans(record, span_id, end_s, new_span_id)
