"""The messages about the trace of a sampled request: what a worker is to note of an attempt, and what it did.

    router                    worker
      |------ TraceAttempt ------>|      in front of the Generate, Reserve, Prefill or Adopt of a sampled request
      |<----- AttemptWork --------|      when the worker is done with a part of it, in front of the last token

Requests that are not sampled have neither. A worker needs no clock of the router's: the times are ages.
"""

from __future__ import annotations

from typing import NamedTuple

TRACING_VERSION = 7  # the version of the protocol that has these messages


class TraceAttempt(NamedTuple):
    """What the worker does for this attempt is to be reported. `traceparent` is the context of W3C Trace Context: the
    trace, and the router's span of the request."""

    request_id: str
    attempt: int
    traceparent: str


class WorkEvent(NamedTuple):
    """A moment in a span, `age_s` seconds before it was sent."""

    name: str
    age_s: float
    figures: tuple[tuple[str, float], ...] = ()


class WorkSpan(NamedTuple):
    """Something that a worker did: its begin and end in seconds before it was sent, figures and labels by name, and
    what went wrong ("": nothing)."""

    name: str
    begin_age_s: float
    end_age_s: float
    figures: tuple[tuple[str, float], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    events: tuple[WorkEvent, ...] = ()
    error: str = ""


class AttemptWork(NamedTuple):
    """What a worker did for an attempt."""

    request_id: str
    attempt: int
    spans: tuple[WorkSpan, ...]
