"""From a `Guide` to the grammar that llguidance parses outputs with, and what is wrong with it.

llguidance is imported by the first guide: nobody else pays for it. It gives up Python's lock, and bounds its work by
counting it (lexer states, Earley items, symbols). What it does not count is refused here: `multipleOf` of many digits,
which becomes an automaton of so many states, and whatever else takes more than `MAX_CPU_S`.

Between the parts of JSON any white space may stand, but no more than `MAX_WHITE_SPACE` characters: a small model that
has begun with spaces would otherwise write them until the end.
"""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

from slipstream.router.messages import Guide

MAX_WHITE_SPACE = 16
MAX_DIVISOR = 10_000
MAX_CPU_S = 1.0


class GrammarError(ValueError):
    """In a sentence, what is wrong with a guide."""


def grammar_of(guide: Guide) -> str:
    """The guide in llguidance's form. Raises GrammarError for what cannot be one; other faults show when it is used."""
    from llguidance import LLMatcher

    match guide.kind:
        case "json":
            _check_divisors(guide.spec)
            white_space = rf"[ \t\n\r]{{1,{MAX_WHITE_SPACE}}}"
            try:
                return LLMatcher.grammar_from_json_schema(guide.spec, overrides={"whitespace_pattern": white_space})
            except ValueError as error:
                raise GrammarError(str(error)) from error
        case "regex":
            return LLMatcher.grammar_from_regex(guide.spec)
        case "choice":
            # A string of Lark has the escapes of JSON.
            choices = map(json.dumps, json.loads(guide.spec))
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}")
        case "grammar":
            return LLMatcher.grammar_from_lark(_as_lark(guide.spec))


def _check_divisors(schema: str) -> None:
    """Raises GrammarError if the schema is not JSON, or wants multiples of too long a number."""
    try:
        left: list[Any] = [json.loads(schema)]
    except (ValueError, RecursionError) as error:
        raise GrammarError(str(error)) from error
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += value.values()
            divisor = value.get("multipleOf")
            if isinstance(divisor, int | float) and abs(_without_point(divisor)) > MAX_DIVISOR:
                raise GrammarError(f"'multipleOf' {divisor} has too many digits")


def _without_point(number: float) -> int:
    """1.25 is 125. Too large for what is no number."""
    digits = Decimal(repr(number)).as_tuple()
    if not isinstance(digits.exponent, int):
        return MAX_DIVISOR + 1
    return int("".join(map(str, digits.digits)) + "0" * min(max(digits.exponent, 0), 8))


def _as_lark(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    if "%json" in text:
        raise GrammarError("'%json' is not served inside a grammar")
    try:
        return any_to_lark(text)
    except Exception as error:  # a parser that raises whatever it stumbles over
        raise GrammarError(f"it is neither a Lark nor a GBNF grammar: {error}") from error


def complaint(guide: Guide) -> str | None:
    """Why no output could follow this guide, whatever the vocabulary, or only at too high a cost; None if one can.
    For a thread: it may take some tenths of a second."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    began_s = time.thread_time()
    try:
        grammar = grammar_of(guide)
    except GrammarError as error:
        return str(error)
    tokenizer = LLTokenizer("byte")  # a token a byte: no model's vocabulary is needed to tell
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error() or not (matcher.is_accepting() or not matcher.is_stopped()):
        return matcher.get_error() or "nothing can follow it"
    if time.thread_time() - began_s > MAX_CPU_S:
        return "it is too complex"
    return None
