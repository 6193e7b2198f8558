"""The spans of what workers did for a request, each below the stage of the attempt that it is a part of.

Workers say how old their spans were when they sent them, so no two clocks are compared: all spans have the router's,
late by the time that a message takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.span import Attributes, Span, SpanEvent
from slipstream.router.protocol.messages import WorkEvent, WorkSpan
from slipstream.router.requests.history import RequestRecord, WorkerWork

StageSpans = dict[tuple[int, str], list[Span]]  # by attempt and name: the decision to move ends a stage of decode

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
    begin_s = max(work.heard_s - span.begin_age_s, trace.begin_s)
    stage = _stage_of(work.attempt, span, begin_s, stages)
    own: Attributes = {f"slipstream.{name}": value for name, value in span.figures}
    own |= {f"slipstream.{name}": value for name, value in span.labels}
    return Span(
        span.name,
        "internal",
        span_id,
        stage.span_id if stage is not None else trace.span_id,
        begin_s,
        max(work.heard_s - span.end_age_s, trace.begin_s),
        attributes | own,
        tuple(_event(event, work.heard_s) for event in span.events),
        span.error or None,
    )


def _stage_of(attempt: int, span: WorkSpan, begin_s: float, stages: StageSpans) -> Span | None:
    """The stage that contains it, the last that had begun. What moves between decode workers is decoded meanwhile."""
    is_move = ("reason", "move") in span.labels
    names = ("decode", "prefill") if is_move else STAGES_OF.get(span.name, ())
    found = next((stages[attempt, name] for name in names if (attempt, name) in stages), None)
    if found is None:
        return None
    return next((stage for stage in reversed(found) if stage.begin_s <= begin_s), found[0])


def _event(event: WorkEvent, heard_s: float) -> SpanEvent:
    return SpanEvent(event.name, heard_s - event.age_s, {f"slipstream.{name}": value for name, value in event.figures})
