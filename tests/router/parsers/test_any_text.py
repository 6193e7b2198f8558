"""Texts of any kind: nothing raises an error, nothing depends on the cuts, nothing is lost."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from slipstream.router.parsers.description.elements import PythonArguments
from slipstream.router.parsers.description.output_format import OutputFormat
from slipstream.router.parsers.events import ArgumentsDelta, ContentDelta, OutputEvent
from slipstream.router.parsers.output_parser import OutputParser
from tests.support.router.output_writer import (
    DISTINCT_FORMATS,
    Call,
    answer_of,
    bound_to,
    merged,
    parsed,
    shown,
    written,
)

EVERY_FORMAT = pytest.mark.parametrize("form", DISTINCT_FORMATS, ids=lambda form: form.name)
NUM_TEXTS = 60
MAX_PIECE = 4  # characters
COMMON = [
    "{",
    "}",
    '"',
    "\\",
    "\n",
    " ",
    "x",
    "name",
    '"name": "f"',
    '"arguments": {',
    ", ",
    ":",
    "[",
    "]",
    "(",
    ")",
    "=",
    "'",
]
TOOLS = {"f": {"properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {"type": "integer"}}}}


def fragments(form: OutputFormat, rng: random.Random) -> str:
    """A text of pieces of the format's own texts, whole and broken."""
    sample = written(form, calls=[Call("f", {"a": "v", "b": "w", "c": 1})] if form.calls or form.channels else [])
    texts = [*form.texts(), *COMMON, sample]
    pieces = []
    for _ in range(rng.randrange(1, 12)):
        piece = rng.choice(texts)
        if rng.random() < 0.3 or piece is sample:
            start = rng.randrange(len(piece) + 1)
            piece = piece[start : rng.randrange(start, len(piece) + 1)] if rng.random() < 0.7 else piece
        pieces.append(piece)
    return "".join(pieces)


@EVERY_FORMAT
def test_fragments_of_a_format_are_read_alike_in_all_pieces(form: OutputFormat) -> None:
    rng = random.Random(form.name)
    for i in range(NUM_TEXTS):
        bound = bound_to(form, special=i % 2 == 0)
        text = shown(bound, fragments(form, rng))
        options: dict[str, Any] = {
            "tools": TOOLS if i % 3 else {},
            "begins_in_reasoning": i % 5 == 0 and has_reasoning(form),
        }
        whole = parsed(bound, [text], **options)
        answer_of(whole)
        assert parsed(bound, list(text), **options) == whole
        cut = rng.randrange(len(text) + 1)
        assert parsed(bound, [text[:cut], "", text[cut:]], **options) == whole
        "".join(map(repr, whole)).encode()  # no special token is left as its character


@EVERY_FORMAT
def test_a_call_is_read_alike_with_every_short_piece_of_its_own(form: OutputFormat) -> None:
    bound = bound_to(form, special=False)
    text = written(form, calls=[Call("f", {"a": "v"})]) if form.calls or form.channels else written(form, "v", "w")
    whole = parsed(bound, [text], tools=TOOLS)
    for first in range(len(text) + 1):
        for second in range(first, min(first + MAX_PIECE, len(text)) + 1):
            assert parsed(bound, [text[:first], text[first:second], text[second:]], tools=TOOLS) == whole


@EVERY_FORMAT
def test_text_without_markers_comes_back_as_it_is(form: OutputFormat) -> None:
    rng = random.Random(form.name)
    for i in range(NUM_TEXTS):
        text = "".join(rng.choice("ab <|>{}[]()\"'`:\n\t éf/=漢😀") for _ in range(rng.randrange(30)))
        events = parsed(bound_to(form, special=i % 2 == 0), list(text))
        assert events == ([ContentDelta(text)] if text else [])


@EVERY_FORMAT
def test_a_text_that_is_cut_off_anywhere_never_takes_back_what_was_sent(form: OutputFormat) -> None:
    bound = bound_to(form, special=False)
    calls = [Call("f", {"a": "v", "c": 1})] if form.calls or form.channels else []
    text = written(form, reasoning="hm" if has_reasoning(form) else "", calls=calls)
    parser = OutputParser(bound, tools=TOOLS)
    sent: list[OutputEvent] = []
    for character in text:
        sent += parser.feed(character)
        before = merged(sent)
        whole = parsed(bound, [text], tools=TOOLS)
        assert answer_text(before) == answer_text(whole)[: len(answer_text(before))]


@pytest.mark.parametrize(
    "form", [form for form in DISTINCT_FORMATS if form.calls or form.channels], ids=lambda f: f.name
)
def test_a_long_string_goes_out_as_it_comes(form: OutputFormat) -> None:
    """Python's values are the exception: they are converted as a whole."""
    value = 'some "words" \n of é and <x> ' * 40
    bound = bound_to(form, special=True)
    text = shown(bound, written(form, calls=[Call("f", {"a": value})]))
    parser = OutputParser(bound, tools=TOOLS)
    num_sent = 0
    for num_fed, character in enumerate(text):
        num_sent += sum(len(event.text) for event in parser.feed(character) if isinstance(event, ArgumentsDelta))
        if num_sent and not is_python(form) and num_fed < text.rindex("<x>"):
            assert num_fed - num_sent < 200
    [(_, arguments)] = answer_of(parsed(bound, [text], tools=TOOLS)).calls
    assert json.loads(arguments) == {"a": value}


def is_python(form: OutputFormat) -> bool:
    return form.calls is not None and any(isinstance(element, PythonArguments) for element in form.calls.call)


def answer_text(events: list[OutputEvent]) -> str:
    """All that was sent, in its order."""
    return "".join(getattr(event, "text", repr(event)) for event in events)


def has_reasoning(form: OutputFormat) -> bool:
    return form.reasoning is not None or form.channels is not None
