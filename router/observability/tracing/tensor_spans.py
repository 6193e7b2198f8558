"""The spans of a request to a tensor model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.router.infer.requests.request_record import InferRecord
from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.span import Attributes, Span


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


def tensor_spans(trace: RequestTrace, record: InferRecord, new_span_id: Callable[[], str]) -> Iterator[Span]:
    """Its time in the queue, and each execution, which lasts until the next one or the end."""
    executions = record.executions
    end_s = trace.end_s if record.ended_s is None else record.ended_s
    begins_s = [execution.started_s for execution in executions]
    queued_until_s = begins_s[0] if begins_s else end_s
    yield Span("queued", "internal", new_span_id(), trace.span_id, record.queued_s, queued_until_s, {})
    for execution, until_s in zip(executions, [*begins_s[1:], end_s], strict=True):
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
        yield Span("executing", "internal", new_span_id(), trace.span_id, begin_s, until_s, attributes, error=error)
