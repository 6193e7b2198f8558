"""Reads a client's W3C Trace Context strictly: the headers `traceparent` and `tracestate`.

By https://www.w3.org/TR/trace-context, a malformed traceparent is ignored together with the tracestate, and a malformed
tracestate is ignored alone. Neither is ever an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Version 00 ends after the flags; later versions may continue after another dash. Version ff is invalid.
TRACEPARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
STATE_KEY = re.compile(r"[a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}")
STATE_VALUE = re.compile(r"[ -+\--<>-~]{0,255}[!-+\--<>-~]")  # printable without comma and equals sign, no space last
MAX_STATE_MEMBERS = 32
SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The caller's span. `state` is the normalised tracestate, which is passed on for other tracing systems."""

    trace_id: str  # 32 hex digits
    span_id: str  # 16 hex digits
    is_sampled: bool
    state: str = ""


def trace_context(traceparent: bytes | None, tracestate: bytes | None) -> TraceContext | None:
    """The caller's trace context; None if the traceparent is missing or malformed."""
    found = TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"00" and more is not None:
        return None
    is_sampled = bool(int(flags, 16) & SAMPLED)
    state = normal_state(tracestate) if tracestate else ""
    return TraceContext(trace_id.decode(), span_id.decode(), is_sampled, state)


def normal_state(tracestate: bytes) -> str:
    """The tracestate without blanks around members and without empty members; empty if it is malformed."""
    try:
        members = [member.strip(" \t") for member in tracestate.decode("ascii").split(",")]
    except UnicodeDecodeError:
        return ""
    members = [member for member in members if member]
    keys = set()
    for member in members:
        key, equals, value = member.partition("=")
        if not (equals and STATE_KEY.fullmatch(key) and STATE_VALUE.fullmatch(value)):
            return ""
        keys.add(key)
    if len(keys) != len(members) or len(members) > MAX_STATE_MEMBERS:
        return ""
    return ",".join(members)
