"""What a reader of the live state is sent, whatever it has seen and missed."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.api.ui.live_state import LiveState

READINGS = st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from([b"1", b"2", b'{"x":3}'])), min_size=1)


def apply(before: dict[str, object], event: bytes) -> dict[str, object]:
    """As the page does it."""
    if not event:
        return before
    name, data = event.decode().removesuffix("\n\n").split("\n")
    body = orjson.loads(data.removeprefix("data: "))
    if name == "event: whole":
        return body["set"]
    assert name == "event: changes"
    return {key: value for key, value in (before | body["set"]).items() if key not in body["removed"]}


@given(READINGS, st.data())
def test_a_reader_that_misses_readings_ends_with_the_state_of_one_that_does_not(
    readings: list[dict[str, bytes]], data: st.DataObject
) -> None:
    state, seen, shown = LiveState(), 0, {}
    for reading in readings:
        state.advance(reading)
        if data.draw(st.booleans()):
            shown, seen = apply(shown, state.event_after(seen)), state.number
            assert shown == {key: orjson.loads(text) for key, text in reading.items()}
    shown = apply(shown, state.event_after(seen))
    assert shown == {key: orjson.loads(text) for key, text in readings[-1].items()}


def test_only_what_has_changed_is_sent_and_rendered_once() -> None:
    state = LiveState()
    state.advance({"a": b"1", "b": b"2"})
    state.advance({"a": b"1", "b": b"3"})
    news = state.event_after(1)
    assert news == b'event: changes\ndata: {"set":{"b":3},"removed":[]}\n\n'
    assert state.event_after(1) is news
    state.advance({"a": b"1", "b": b"3"})
    assert (state.number, state.event_after(2)) == (2, b"")
