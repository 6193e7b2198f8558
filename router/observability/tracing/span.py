"""A span, as it is exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.router.observability.tracing.request_trace import Value

Attributes = dict[str, Value]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    time_s: float
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are seconds of the records' clock. `error` is the text of the status; None if all went well."""

    name: str
    kind: Literal["server", "internal"]
    span_id: str
    parent_id: str | None
    begin_s: float
    end_s: float
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None
    links: tuple[str, ...] = ()  # ids of spans of the same trace, which it goes on from
