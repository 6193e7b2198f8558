"""Patterns of JSON schemas: what llguidance is given matches what Python's `re` finds the pattern in."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.structured_output.regex.automaton import matches
from slipstream.router.structured_output.regex.pattern_parser import PatternError
from slipstream.router.structured_output.regex.patterns import as_pattern, as_patterns, searched

PATTERNS = [
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^(?=.*a)(?=.*b).{2,4}$",
    r"^(?!ab)[ab]+$",
    r"^(?!.*\.\.)[a.]+$",
    r"^((?!ab).)*$",
    r"^.*(?<!a)$",
    r"^a*(?<=aa)b$",
    r"^(?!-)[ab-]+(?<!-)$",
    r"(?<!a)b",
    r"b(?<!ab)$|c",
    r"^a|b$",
    r"(^a|b)c$",
    r"a^b",
    r"a$b",
    r"^(a|^b)??c$",
    r"(?:a|b)(?=b)",
    r"^(?:(?!a)b|c){2}$",
    r"(?i)^AB$",
    r"^(?P<name>a)(?#note)b?$",
    r"\Aa\Z",
    r"[^ab]",
    r"[\w.-]+",
    r"^\x61\u0062$",
    r"^[a-c]{,2}$",
    r"^a{0}b{1,}$",
    "",
]
TEXTS = st.text("ab.c+-01{,}2A", max_size=5)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=30)
@given(text=TEXTS)
def test_the_expression_matches_where_the_pattern_is_found(pattern: str, text: str) -> None:
    if pattern == r"^[a-c]{,2}$":  # in ECMA-262 these braces are themselves
        assert matches(searched(pattern), text) == bool(re.fullmatch(r"[a-c]\{,2\}", text))
        return
    expected = bool(re.search(pattern, text))
    assert matches(searched(pattern), text) == expected
    assert all(re.fullmatch(python(one), text) for one in as_patterns(searched(pattern))) == expected
    assert bool(re.fullmatch(python(as_pattern(searched(pattern))), text)) == expected


def python(pattern: str) -> str:
    """What is written for Rust, for Python's `re`."""
    escaped = re.sub(r"\\x\{([0-9A-F]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", pattern)
    return escaped.replace("[^\\U00000000-\\U0010ffff]", "(?!)")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "backreferences"),
        (r"(?P<x>a)(?P=x)", "backreferences"),
        (r"\bfoo", "word boundaries"),
        ("a)", "too many"),
        ("(a", "missing"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("[b-a]", "out of order"),
        ("a{3,2}", "out of order"),
        ("a{2,10000000}", "too often"),
        ("(?:a(?=b))*c", "inside a repetition"),
        ("^(?=a)a(?<=a)b(?<!c)$", "look-behind"),
        ("(" * 100 + ")" * 100, "nested"),
        (r"^(?!.*(a|b).{20}x).*$", "too complex"),
        ("\\", "ends too early"),
        (r"\q", "escape"),
        ("(?m)^a", "flag"),
    ],
)
def test_what_is_not_served_is_said(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        as_patterns(searched(pattern))
