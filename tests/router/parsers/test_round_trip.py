"""What is written in a format is read again, for any calls."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.parsers.description.elements import GemmaArguments, TaggedArguments
from slipstream.router.parsers.description.output_format import OutputFormat
from tests.support.router.output_writer import (
    DISTINCT_FORMATS,
    Call,
    answer_of,
    bound_to,
    parsed,
    schemas_of,
    shown,
    written,
)

CHARACTERS = st.sampled_from(list("aZ09 .,:;=-_'\"\\/{}[]()<>|`\n\té漢😀"))
LOOK_ALIKES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "</", "<think>", "\n</parameter", '"}}', "[/THINK]", "```"]
)
TEXTS = st.lists(CHARACTERS | LOOK_ALIKES, max_size=8).map("".join)
NAMES = st.sampled_from(["a", "key", "get_weather", "_x9", "Ünï", "kebab_Case2"])
SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.sampled_from([0.5, -1e-7, 1e22]) | TEXTS
NESTED = SCALARS | st.lists(SCALARS, max_size=2)
VALUES = NESTED | st.dictionaries(NAMES, NESTED, max_size=2)
CALLS = st.lists(
    st.builds(Call, NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), max_size=3, unique_by=lambda call: call.name
)
PROSE = st.text(st.sampled_from(list("ab .é\n<")), max_size=8).map(str.strip)

EVERY_FORMAT = pytest.mark.parametrize("form", DISTINCT_FORMATS, ids=lambda form: form.name)


@EVERY_FORMAT
@given(calls=CALLS, content=PROSE, reasoning=PROSE, is_special=st.booleans(), cuts=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_what_was_written_is_read_in_any_pieces(
    form: OutputFormat, calls: list[Call], content: str, reasoning: str, is_special: bool, cuts: random.Random
) -> None:
    calls = [call for call in calls if can_be_written(form, call)]
    if form.channels is None and form.calls is None:
        calls = []
    if form.channels is None and form.reasoning is None:
        reasoning = ""
    if calls and (form.channels is not None or (form.calls is not None and form.calls.only_at_start)):
        content = ""
    bound = bound_to(form, is_special)
    text = shown(bound, written(form, reasoning, content, calls))
    events = parsed(bound, [text], tools=schemas_of(calls))
    answer = answer_of(events)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [
        (call.name, call.arguments) for call in calls
    ]
    for pieces in (list(text), random_pieces(text, cuts), random_pieces(text, cuts)):
        assert parsed(bound, pieces, tools=schemas_of(calls)) == events


def random_pieces(text: str, cuts: random.Random) -> list[str]:
    places = sorted(cuts.randrange(len(text) + 1) for _ in range(4))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def can_be_written(form: OutputFormat, call: Call) -> bool:
    """Where strings have no escapes, the text that ends them cannot stand within."""
    body = form.calls.call[form.calls.body] if form.calls is not None else None
    match body:
        case TaggedArguments():
            return not any(isinstance(value, str) and body.after_value in value for value in call.arguments.values())
        case GemmaArguments():
            return not any(body.quote in text for text in strings_in(call.arguments))
        case _:
            return True


def strings_in(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for item in value for text in strings_in(item)]
        case dict():
            return [text for item in value.values() for text in strings_in(item)]
        case _:
            return []
