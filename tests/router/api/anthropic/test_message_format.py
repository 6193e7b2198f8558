"""The events of a message follow from what was written, however it was cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.api.anthropic.answer_blocks import input_of
from slipstream.router.api.anthropic.message_format import AnthropicMessage, MessageHead, dumped
from slipstream.router.api.anthropic.thinking_signature import CARRIED, carried_by
from slipstream.router.api.generation.answer.answer_format import AnswerHead, TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.output import Events
from slipstream.router.api.generation.answer.parsed_output import merged
from slipstream.router.api.openai.responses.body.reasoning_seal import PREFIX, unsealed
from slipstream.router.parsers.events import ArgumentsDelta, CallBegin, ContentDelta, OutputEvent, ReasoningDelta
from tests.support.router.message_events import message_events, put_together

USAGE = TokenUsage(7, 20, 3, 2)
TEXTS = st.sampled_from(["a", " ", "\n\n", "Hello", "wörd 🙂"])
CALL_PARTS = st.sampled_from(['{"a": ', '"b"', ", ", "1}"])


@st.composite
def outputs(draw: st.DrawFn) -> Events:
    """The events of an output, one for each token."""
    events: list[OutputEvent] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "call"]), max_size=6)):
        if kind == "call":
            events.append(CallBegin(num_calls, "f", draw(st.sampled_from(["", "own", "own"]))))
            events += [ArgumentsDelta(num_calls, part) for part in ('{"a": ', draw(st.sampled_from(["1", '"ü"'])), "}")]
            num_calls += 1
        else:
            form = ContentDelta if kind == "content" else ReasoningDelta
            events += [form(text) for text in draw(st.lists(TEXTS, min_size=1, max_size=4))]
    return events


def message(shows_thinking: bool = True) -> AnthropicMessage:
    return AnthropicMessage(MessageHead(AnswerHead("msg_1", 0, "m"), "req", 7, shows_thinking=shows_thinking))


@given(outputs(), st.data(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_stream_cut_anywhere_is_the_whole_message(events: Events, data: st.DataObject, shows_thinking: bool) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    form = message(shows_thinking)
    parts = [merged(events[begin:end]) for begin, end in pairwise([0, *cuts, len(events)])]
    stream = b"".join([form.text_chunk(0, part, []) for part in parts[:-1]])
    stream += form.final_chunk(0, parts[-1], [], "stop") + form.stream_end(USAGE, b"")
    whole = message(shows_thinking).whole([WholeChoice(0, merged(events), [], "stop")], USAGE)
    streamed = put_together(message_events(stream))
    (only,) = message_events(b'event: message\ndata: {"type":"message",' + whole.lstrip(b"{") + b"\n\n")
    assert streamed == only
    ids = [block["id"] for block in streamed["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids)
    assert all(block.get("text", "x").strip() for block in streamed["content"])


@given(outputs(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_next_router_goes_on_with_what_the_client_does_not_have(events: Events, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(events)))
    first, second = message(), message()
    sent = b"".join([first.text_chunk(0, [event], []) for event in events[:at]])
    second.text_chunk(0, merged(events[:at]), [])  # the client has it
    for form in (first, second):
        rest = b"".join([form.text_chunk(0, [event], []) for event in events[at:]])
        ends = rest + form.final_chunk(0, [], [], "length") + form.stream_end(USAGE, b"")
        if form is first:
            expected = sent + ends
        else:
            assert sent + ends == expected


def test_an_output_that_is_text_needs_no_parser() -> None:
    form = message()
    stream = form.text_chunk(0, "", []) + form.text_chunk(0, "Hel", []) + form.final_chunk(0, "lo", [], "length")
    assert put_together(message_events(stream + form.stream_end(USAGE, b"")))["content"] == [
        {"type": "text", "text": "Hello"}
    ]


def test_arguments_that_were_cut_off_are_an_object_of_what_is_there() -> None:
    assert input_of('{"a": [1, 2], "b": "Ro') == {"a": [1, 2], "b": "Ro"}
    assert input_of("") == input_of("[1]") == input_of("{{") == {}
    assert input_of('{"a": 123456789012345678901234567890}') == {"a": 123456789012345678901234567890}


def test_half_a_surrogate_pair_in_an_argument_is_there_whole_and_streamed() -> None:
    arguments = '{"a":"x\\ud83d","b":"\u00e9"}'
    assert input_of(arguments) == {"a": "x\ud83d", "b": "\u00e9"} == json.loads(dumped(input_of(arguments)))


@pytest.mark.parametrize("content", ["\u00e9", "a", "////", "=", "\ud7ff"])
def test_a_signature_that_is_damaged_carries_nothing(content: str) -> None:
    assert carried_by(CARRIED + content) == unsealed(PREFIX + content) == ""
