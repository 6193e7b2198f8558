"""W3C Trace Context: what counts as a traceparent and a tracestate, and what counts as none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.observability.tracing.context import TraceContext, trace_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()


def test_a_good_one_is_read() -> None:
    assert trace_context(GOOD, None) == TraceContext(TRACE, SPAN, True)
    assert trace_context(f"00-{TRACE}-{SPAN}-00".encode(), b"") == TraceContext(TRACE, SPAN, False)
    assert trace_context(f"00-{TRACE}-{SPAN}-03".encode(), None) == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize("later", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be"])
def test_later_versions_are_read_as_far_as_they_are_known(later: str) -> None:
    assert trace_context(later.encode(), None) == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01.",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
    ],
)
def test_a_bad_one_counts_as_none(bad: str) -> None:
    assert trace_context(bad.encode(), b"a=1") is None


@pytest.mark.parametrize(
    ("given_state", "passed_on"),
    [
        (b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (b" a=1 ,\t b@c=2,,", "a=1,b@c=2"),
        (b"a=1,a=2", ""),
        (b"A=1", ""),
        (b"a", ""),
        (b"a=", ""),
        (b"a=b=c", ""),
        (b"a=1,b=\xff", ""),
        (b"a= 1", "a= 1"),
        (b",".join(b"k%d=1" % number for number in range(32)), ",".join(f"k{number}=1" for number in range(32))),
        (b",".join(b"k%d=1" % number for number in range(33)), ""),
        (b"a=" + b"x" * 256, "a=" + "x" * 256),
        (b"a=" + b"x" * 257, ""),
        (b"x" * 256 + b"=1", "x" * 256 + "=1"),
        (b"x" * 257 + b"=1", ""),
    ],
)
def test_a_tracestate_that_is_not_right_is_dropped_alone(given_state: bytes, passed_on: str) -> None:
    assert trace_context(GOOD, given_state) == TraceContext(TRACE, SPAN, True, passed_on)


def test_a_tracestate_alone_is_nothing() -> None:
    assert trace_context(None, b"a=1") is None


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_no_header_is_ever_an_error(traceparent: bytes, tracestate: bytes) -> None:
    trace_context(traceparent, tracestate)
    found = trace_context(GOOD, tracestate)
    assert found is not None
    assert found.trace_id == TRACE
