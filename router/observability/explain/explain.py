"""A request's record as JSON: where the request was at what time, what was decided and why, and how well the
predictions held.

The format is documented in docs/reference/api.md, and fields are only ever added. All times are in seconds; those of
events count from the moment the request was queued. A time that has not come yet, or a prediction that was not made, is
null.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, get_args

from slipstream.router.protocol.generation import ErrorKind, GenerationError, GenerationFinish, Phase
from slipstream.router.protocol.messages import FinishReason
from slipstream.router.requests.history import RequestRecord
from slipstream.router.requests.placement_decision import Candidate, Decision
from slipstream.router.requests.stages import AttemptStages, attempts_of

Json = dict[str, Any]

# All that `outcome` can be. (An error's outcome is its kind.)
OUTCOMES = tuple(reason for reason in get_args(FinishReason) if reason != "error") + get_args(ErrorKind)
PHASES: tuple[str, ...] = get_args(Phase)


def summary(record: RequestRecord, unix_offset_s: float) -> Json:
    """One request as an item of a list. `unix_offset_s` plus a time of the record is seconds since 1970."""
    timeline, usage = record.timeline, record.usage
    decisions = record.decisions
    return {
        "request_id": record.request_id,
        "names": record.names,
        "queued_at": moment(timeline.queued + unix_offset_s),
        "phase": record.phase,
        "outcome": outcome(record.finish),
        "tenant": record.tenant,
        "model": record.model or None,
        "version": record.version or None,
        "prefill": decisions[-1].prefill.name if decisions and decisions[-1].prefill is not None else None,
        "decode": record.decode_name,
        "num_attempts": record.num_attempts,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_cached_tokens": usage.num_cached_tokens,
        "num_output_tokens": usage.num_output_tokens,
        "queue_s": since(timeline.queued, timeline.placed),
        "ttft_s": since(timeline.queued, timeline.first_token),
        "itl_s": mean_itl_s(record),
        "total_s": since(timeline.queued, timeline.finished),
    }


def explanation(record: RequestRecord, unix_offset_s: float) -> Json:
    """Everything that is known about one request, running or finished."""
    queued_s = record.timeline.queued
    timeline = dataclasses.asdict(record.timeline)
    if record.is_refused:
        timeline["queued"] = None
    return {
        **summary(record, unix_offset_s),
        "priority": record.priority,
        "session_id": record.session,
        "trace_id": record.trace_id or None,
        "slo": dataclasses.asdict(record.slo),
        "levels": None if record.levels is None else record.levels._asdict(),
        "timeout_s": record.timeout_s,
        "max_output_tokens": record.max_output_tokens,
        "sampling": None if record.sampling is None else record.sampling._asdict(),
        "why": record.why,
        "timeline": {phase: since(queued_s, at_s) for phase, at_s in timeline.items()},
        "predictions": predictions(record),
        "attempts": attempts(record),
        "transfer": transfer(record),
        "decisions": [
            {"attempt": event.attempt, "at_s": since(queued_s, event.time_s), **decision_json(event.decision)}
            for event in record.events
            if event.decision is not None
        ],
        "events": [
            {
                "at_s": since(queued_s, event.time_s),
                "phase": event.phase,
                "attempt": event.attempt,
                "detail": event.detail,
            }
            for event in record.events
        ],
        "continues": record.continues or None,
        "kept": kept(record),
        "num_events_left_out": record.num_events_left_out,
        "finish": None if record.finish is None else finish_json(record.finish),
        "story": record.lines(),
    }


def kept(record: RequestRecord) -> Json | None:
    """For how long its workers keep its pages after its end, and why."""
    pages = record.kept
    if pages is None:
        return None
    if pages.is_pinned:
        why = f"the client asks for {pages.keep_s:g} s"
    else:
        after = f"a call of {pages.tool}" if pages.tool else "an answer without a call"
        why = f"after {after}, {pages.return_share:.0%} come back within {pages.keep_s:.3g} s"
        if not pages.keep_s:
            why = f"after {after}, too few come back in time"
    return {
        "num_tokens": pages.num_tokens,
        "until_s": since(record.timeline.queued, pages.at_s + pages.keep_s),
        "keep_s": pages.keep_s,
        "tool": pages.tool or None,
        "return_share": pages.return_share,
        "is_pinned": pages.is_pinned,
        "why": why,
    }


def explained_now(records: Iterable[RequestRecord]) -> list[Json]:
    """The explanations of some requests at this moment."""
    offset_s = unix_offset_s()
    return [explanation(record, offset_s) for record in records]


def unix_offset_s() -> float:
    """What to add to `time.monotonic()`, the clock of records, to get seconds since 1970 by the present clock."""
    return time.time() - time.monotonic()


def predictions(record: RequestRecord) -> dict[str, Json]:
    """What the first placement predicted, beside what really happened."""
    decisions = record.decisions
    usage = record.usage if record.finish is not None else None
    measured = {
        "ttft_s": since(record.timeline.queued, record.timeline.first_token),
        "itl_s": mean_itl_s(record),
        "output_tokens": usage and usage.num_output_tokens,
        "cached_tokens": record.num_cached_tokens,
    }
    foreseen: dict[str, float | None] = {}
    if decisions:
        first = decisions[0]
        chosen = chosen_of(first)
        # The policy predicts from the placement on, while clients and SLOs count from the moment of being queued. The
        # time spent in the queue was known when the prediction was made, so it is added.
        waited_s, ttft_s = since(record.timeline.queued, record.timeline.placed), first.predicted_ttft_s
        foreseen = {
            "ttft_s": waited_s + ttft_s if waited_s is not None and ttft_s is not None else None,
            "itl_s": first.predicted_itl_s,
            "output_tokens": first.predicted_output_tokens,
            "cached_tokens": chosen.num_cached_tokens if chosen is not None else None,
        }
    return {what: {"predicted": foreseen.get(what), "measured": value} for what, value in measured.items()}


def attempts(record: RequestRecord) -> list[Json]:
    queued_s = record.timeline.queued
    return [
        {
            "attempt": attempt.number,
            "begin_s": since(queued_s, attempt.begin_s),
            "end_s": since(queued_s, attempt.end_s),
            "prefill": attempt.decision.prefill.name if attempt.decision and attempt.decision.prefill else None,
            "decode": _decode_of(attempt),
            "failure": attempt.failure or None,
            "stages": [
                {
                    "stage": stage.name,
                    "begin_s": since(queued_s, stage.begin_s),
                    "end_s": since(queued_s, stage.end_s),
                    "where": stage.where or None,
                }
                for stage in attempt.stages
            ],
        }
        for attempt in attempts_of(record)
    ]


def _decode_of(attempt: AttemptStages) -> str | None:
    if attempt.moved_to is not None:
        return attempt.moved_to.name
    return attempt.decision.decode.name if attempt.decision is not None else None


def transfer(record: RequestRecord) -> Json | None:
    """The latest hand-off of pages; None if there was none."""
    landed = record.landed
    if landed is None:
        return None
    at_s = since(record.timeline.queued, landed.time_s)
    return {"attempt": landed.attempt, "at_s": at_s, "num_bytes": landed.num_bytes, "seconds": landed.seconds}


def decision_json(decision: Decision) -> Json:
    return {
        "policy": decision.policy,
        "reason": decision.reason,
        "why": decision.why,
        "prefill": decision.prefill.name if decision.prefill is not None else None,
        "decode": decision.decode.name,
        "margin": decision.margin,
        "predicted_ttft_s": decision.predicted_ttft_s,
        "predicted_itl_s": decision.predicted_itl_s,
        "predicted_output_tokens": decision.predicted_output_tokens,
        "candidates": [candidate_json(candidate, decision) for candidate in decision.candidates],
    }


def candidate_json(candidate: Candidate, decision: Decision) -> Json:
    return {
        "prefill": candidate.prefill.name if candidate.prefill is not None else None,
        "decode": candidate.decode.name,
        "chosen": decision.chose(candidate),
        "fits": candidate.fits,
        "excluded": candidate.excluded or None,
        "cost": candidate.cost,
        "terms": {term.name: term.value for term in candidate.terms},
        "num_cached_tokens": candidate.num_cached_tokens,
    }


def finish_json(finish: GenerationFinish) -> Json:
    values = dataclasses.asdict(finish)
    if finish.error is not None:
        values["error"]["figures"] = figures(finish.error)
    return values


def figures(error: GenerationError) -> dict[str, float]:
    """The numbers that the decision was made by; counts are whole numbers, although they may have come as floats."""
    return {name: int(value) if value == int(value) else round(value, 6) for name, value in error.figures}


def chosen_of(decision: Decision) -> Candidate | None:
    return next((candidate for candidate in decision.candidates if decision.chose(candidate)), None)


def outcome(finish: GenerationFinish | None) -> str | None:
    """`stop`, `length`, `abort`, or the kind of error; None while the request runs."""
    if finish is None:
        return None
    return finish.error.kind if finish.error is not None else finish.reason


def mean_itl_s(record: RequestRecord) -> float | None:
    """The time from the first token to the end, divided by the number of tokens after the first; None while the request
    runs or if it has one token only."""
    first_s, end_s = record.timeline.first_token, record.timeline.finished
    num_gaps = record.usage.num_output_tokens - 1
    return (end_s - first_s) / num_gaps if first_s is not None and end_s is not None and num_gaps > 0 else None


def since(begin_s: float, at_s: float | None) -> float | None:
    """Seconds from `begin_s` to `at_s`, rounded to the microsecond, as more digits are noise."""
    return None if at_s is None else round(at_s - begin_s, 6)


def moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
