"""The spans of what workers did for a request, each below the stage of the attempt that it is a part of.

Workers say how old their spans were when they sent them, so no two clocks are compared: all spans have the router's,
late by the time that a message takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.span import Attributes, Span, SpanEvent
from slipstream.router.protocol.messages import WorkEvent, WorkSpan
from slipstream.router.requests.history import RequestRecord, WorkerWork

StageSpans = dict[tuple[int, str], Span]  # by attempt and name

# The stages that may contain a worker's span, the best first. The pages of a prompt begin to leave during its prefill.
STAGES_OF: Mapping[str, tuple[str, ...]] = {
    "worker.prefill": ("prefill",),
    "worker.send": ("transfer", "prefill", "decode"),
    "worker.receive": ("transfer", "prefill", "reserve", "decode"),
    "worker.decode": ("decode", "transfer", "prefill"),
}


def work_spans(
    trace: RequestTrace, record: RequestRecord, index: int, stages: StageSpans, new_span_id: Callable[[], str]
) -> Iterator[Span]:
    """Those of one choice, number `index`. What belongs to no known stage is below the span of the whole request."""
    for work in record.work:
        attributes: Attributes = {
            "slipstream.request.id": record.request_id,
            "slipstream.attempt": work.attempt,
            "slipstream.worker": work.worker,
        }
        if len(trace.records) > 1:
            attributes["slipstream.choice"] = index
        for span in work.spans:
            yield _work_span(trace, work, span, attributes, stages, new_span_id())


def _work_span(
    trace: RequestTrace, work: WorkerWork, span: WorkSpan, attributes: Attributes, stages: StageSpans, span_id: str
) -> Span:
    names = STAGES_OF.get(span.name, ())
    stage = next((stages[work.attempt, name] for name in names if (work.attempt, name) in stages), None)
    own: Attributes = {f"slipstream.{name}": value for name, value in span.figures}
    own |= {f"slipstream.{name}": value for name, value in span.labels}
    return Span(
        span.name,
        "internal",
        span_id,
        stage.span_id if stage is not None else trace.span_id,
        max(work.heard_s - span.begin_age_s, trace.begin_s),
        max(work.heard_s - span.end_age_s, trace.begin_s),
        attributes | own,
        tuple(_event(event, work.heard_s) for event in span.events),
        span.error or None,
    )


def _event(event: WorkEvent, heard_s: float) -> SpanEvent:
    return SpanEvent(event.name, heard_s - event.age_s, {f"slipstream.{name}": value for name, value in event.figures})
