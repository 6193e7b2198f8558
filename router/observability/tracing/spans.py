"""Makes the spans of a request from its records after its end, so that the hot path only has to note times.

    POST /v1/chat/completions          one per HTTP request, a child of the caller's span if there is one
      |- queued, reserve, prefill, transfer, decode      `router.stages`, one set per attempt and choice
           |- worker.prefill, .send, .receive, .decode   as workers report
    POST /v2/models/M/infer
      |- queued, executing                               one of the latter per execution by an instance

Names and attributes follow OpenTelemetry's conventions for HTTP servers and, where there is one, for generative AI;
our own begin with `slipstream.`. A placement is an event, with its candidates, of the stage that it ended.
The first span of a retry, or after a move, is linked to the last one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from slipstream.router.observability.explain.explain import mean_itl_s, outcome
from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.span import Attributes, Span, SpanEvent
from slipstream.router.observability.tracing.tensor_spans import rpc_span, tensor_attributes, tensor_spans
from slipstream.router.observability.tracing.work_spans import StageSpans, work_spans
from slipstream.router.requests.history import RequestRecord
from slipstream.router.requests.placement_decision import Decision
from slipstream.router.requests.stages import AttemptStages, attempts_of

MAX_TRACED_CHOICES = 16  # per HTTP request; a thousand choices would be many thousands of spans
MAX_TOLD_CANDIDATES = 16  # per placement


def spans_of(trace: RequestTrace, new_span_id: Callable[[], str]) -> Iterator[Span]:
    """The span of the request, followed by those of its stages."""
    yield rpc_span(trace) if trace.rpc else _request_span(trace)
    for index, record in enumerate(trace.records[:MAX_TRACED_CHOICES]):
        stages: StageSpans = {}
        before: Span | None = None
        for attempt in attempts_of(record):
            for span in _stage_spans(trace, record, attempt, index, new_span_id):
                if before is not None and before.attributes["slipstream.attempt"] != attempt.number:
                    span = replace(span, links=(before.span_id,))
                stages.setdefault((attempt.number, span.name), []).append(span)
                before = span
                yield span
        yield from work_spans(trace, record, index, stages, new_span_id)
    if trace.tensor_request is not None:
        yield from tensor_spans(trace, trace.tensor_request, new_span_id)


def _request_span(trace: RequestTrace) -> Span:
    attributes: Attributes = {
        "http.request.method": trace.method,
        "http.route": trace.path,
        "url.path": trace.path,
        "http.response.status_code": trace.status,
        "slipstream.http.request_id": trace.http_request_id,
        **trace.asked,
    }
    records = trace.records
    if records:
        usages = [record.usage for record in records]
        reasons = trace.reasons or [record.finish.reason for record in records if record.finish is not None]
        attributes |= {
            "gen_ai.usage.input_tokens": sum(usage.num_prompt_tokens for usage in usages),
            "gen_ai.usage.output_tokens": sum(usage.num_output_tokens for usage in usages),
            "gen_ai.usage.cache_read.input_tokens": sum(usage.num_cached_tokens for usage in usages),
            "gen_ai.response.finish_reasons": tuple(reasons),
            "slipstream.request.id": records[0].request_id,
            "slipstream.request.outcome": outcome(records[0].finish) or "",
            "slipstream.request.num_attempts": max(record.num_attempts for record in records),
            "slipstream.request.priority": records[0].priority,
        }
        first_s = records[0].timeline.first_token
        if first_s is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = first_s - trace.begin_s
        itl_s = mean_itl_s(records[0])
        if itl_s is not None:
            attributes["slipstream.request.itl_s"] = itl_s
        for key, value in (("tenant", records[0].tenant), ("session", records[0].session)):
            if value:
                attributes[f"slipstream.request.{key}"] = value
    if trace.tensor_request is not None:
        attributes |= tensor_attributes(trace.tensor_request)
    error = _note_failure(trace, attributes)
    parent_id = trace.parent.span_id if trace.parent is not None else None
    name = f"{trace.method} {trace.path}"
    return Span(name, "server", trace.span_id, parent_id, trace.begin_s, trace.end_s, attributes, error=error)


def _note_failure(trace: RequestTrace, attributes: Attributes) -> str | None:
    """Adds why a request was refused or failed. Returns the error of its span: a client's mistake is none of the
    server's."""
    error = None
    errors = (record.finish.error for record in trace.records if record.finish is not None)
    failed = trace.refusal or next(filter(None, errors), None)
    if failed is not None:
        attributes["slipstream.request.outcome"] = failed.kind
        attributes |= {f"slipstream.refusal.{name}": value for name, value in failed.figures}
        if not 400 <= trace.status < 500:
            error, attributes["error.type"] = failed.message, failed.kind
    if trace.status >= 400:
        attributes["error.type"] = str(trace.status)
        if trace.status >= 500:
            error = error or f"status {trace.status}"
    return error


def _stage_spans(
    trace: RequestTrace, record: RequestRecord, attempt: AttemptStages, index: int, new_span_id: Callable[[], str]
) -> Iterator[Span]:
    placements = [event for event in record.events if event.decision is not None and event.attempt == attempt.number]
    for stage in attempt.stages:
        is_last = stage is attempt.stages[-1]
        end_s = stage.end_s if stage.end_s is not None else trace.end_s
        attributes: Attributes = {"slipstream.request.id": record.request_id, "slipstream.attempt": attempt.number}
        if len(trace.records) > 1:
            attributes["slipstream.choice"] = index
        if stage.where:
            attributes["slipstream.worker"] = stage.where
        if stage.name == "transfer" and record.landed is not None and record.landed.attempt == attempt.number:
            attributes["slipstream.transfer.bytes"] = record.landed.num_bytes
            attributes["slipstream.transfer.seconds"] = record.landed.seconds
        # A placement ends a stage; the decision made at that moment belongs to that stage and not to the next one.
        events = tuple(
            SpanEvent("placed", event.time_s, decision_attributes(event.decision))
            for event in placements
            if event.decision is not None and event.time_s == end_s
        )
        placements = [event for event in placements if event.time_s != end_s]
        error = attempt.failure if is_last and attempt.failure else None
        yield Span(
            stage.name, "internal", new_span_id(), trace.span_id, stage.begin_s, end_s, attributes, events, error
        )


def decision_attributes(decision: Decision) -> Attributes:
    """A decision as attributes. These cannot be nested, so each candidate becomes one line of text."""
    attributes: Attributes = {
        "slipstream.placement.policy": decision.policy,
        "slipstream.placement.reason": decision.reason,
        "slipstream.placement.why": decision.why,
        "slipstream.placement.decode": decision.decode.name,
        "slipstream.placement.prefill": decision.prefill.name if decision.prefill is not None else "local",
    }
    for key in ("margin", "predicted_ttft_s", "predicted_itl_s", "predicted_output_tokens"):
        value = getattr(decision, key)
        if value is not None:
            attributes[f"slipstream.placement.{key}"] = value
    attributes["slipstream.placement.candidates"] = tuple(
        f"{one.prefill.name if one.prefill is not None else 'local'} -> {one.decode.name}: cost {one.cost:.4g}"
        + "".join(f" {term.name}={term.value:.4g}" for term in one.terms)
        + ("" if one.fits else " (no room)")
        + (f" ({one.excluded})" if one.excluded else "")
        for one in decision.candidates[:MAX_TOLD_CANDIDATES]
    )
    return attributes
