"""The text for a custom tool is read from JSON, however that is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.api.openai.responses.answer.custom_input import CustomInput


def read(arguments: str, cuts: list[int]) -> tuple[str, CustomInput]:
    custom, text = CustomInput(), ""
    ends = sorted({min(cut, len(arguments)) for cut in cuts} | {len(arguments)})
    begin = 0
    for end in ends:
        text += custom.add(arguments[begin:end])
        begin = end
    return text + custom.finish(), custom


@settings(max_examples=40, deadline=None)
@given(st.text(), st.lists(st.integers(0, 80)), st.booleans())
def test_the_text_does_not_depend_on_the_cuts(text: str, cuts: list[int], is_ascii: bool) -> None:
    made, custom = read(json.dumps({"input": text}, ensure_ascii=is_ascii), cuts)
    assert made == custom.text == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"text": "abc"}', "abc"),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ("plain words", "plain words"),
        ('"quoted"', "quoted"),
        ("", ""),
        ('{"input": "cut o', "cut o"),
        ('{"input": "half \\ud83d alone"}', "half \ufffd alone"),
        ('{"text": "half \\ud83d alone"}', "half \ufffd alone"),
        ('{"text": "pair \\ud83d\\ude00, half \\ude00"}', "pair \U0001f600, half \ufffd"),
        ('{"input": "\\ude42"}', "\ufffd"),
        ('{"input": 7}', '{"input": 7}'),
    ],
)
def test_other_forms_are_taken_as_what_they_most_likely_mean(arguments: str, text: str) -> None:
    for cuts in ([], list(range(len(arguments)))):
        made, _ = read(arguments, cuts)
        assert made == text
