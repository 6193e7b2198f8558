"""Turns a `GrammarSpec` into the grammar that llguidance parses outputs with, and checks it.

llguidance is imported when the first grammar is used, so other processes need not load it. It releases Python's lock,
and bounds its own work by counting lexer states, Earley items and symbols; the trial and the workers use the same
limits, `parser_limits`. What it does not count is refused here (a `multipleOf` of many digits, which becomes an
automaton of as many states, and unbounded repetition), or ends the process in which grammars are tried
(`grammar_trial.py`).

A JSON schema comes as `structured_output.json_schema` has rewritten it, with llguidance's options in it (`x-guidance`).
One without them comes from an older router, and allows white space between the parts of JSON. There are at most
`MAX_WHITE_SPACE` characters of it: otherwise a small model that has begun to write spaces would continue with them to
the end.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import Phase
from slipstream.router.structured_output.json_schema.anything import DEFINITION, FREE_OBJECT, NAME

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

MAX_WHITE_SPACE = 16
MAX_DIVISOR = 10_000  # as many automaton states, which take 40 ms to build
MAX_REPEATS = 1_000_000
MAX_STEP_FUEL = 50_000  # for one mask; a quarter of llguidance's default, with which a mask can take 150 ms
NUM_TRIED_BYTES = 24
CONTENT = "content"  # the name under which a phase's Lark refers to `Phase.content`
ENDLESS = "NoExtensionBias"  # llguidance's word for a rule that only leads to itself


class JsonStyle(NamedTuple):
    """How JSON is written: without white space (`compact`), with a space behind commas and colons or none (`optional`:
    models are trained on what `json.dumps` writes, and on compact JSON), or with `any`; and whether an object with
    `properties` may have others, which in JSON Schema it may."""

    whitespace: Literal["compact", "optional", "any"] = "optional"
    open_objects: bool = False


DEFAULT_JSON = JsonStyle()


class GrammarError(ValueError):
    """A grammar cannot be used; the text says why in one sentence."""


def grammar_of(grammar_spec: GrammarSpec) -> str:
    """The grammar in llguidance's format. Raises GrammarError if it cannot be converted; other faults only show when
    the grammar is used."""
    from llguidance import LLMatcher

    match grammar_spec.kind:
        case "json":
            _check_divisors(grammar_spec.spec)
            if '"x-guidance":' in grammar_spec.spec:
                return LLMatcher.grammar_from_json_schema(grammar_spec.spec)
            _check_repeats(grammar_spec)
            white_space = rf"[ \t\n\r]{{1,{MAX_WHITE_SPACE}}}"
            try:
                return LLMatcher.grammar_from_json_schema(
                    grammar_spec.spec, overrides={"whitespace_pattern": white_space}
                )
            except ValueError as error:
                raise GrammarError(str(error)) from error
        case "regex":
            _check_repeats(grammar_spec)
            return LLMatcher.grammar_from_regex(grammar_spec.spec)
        case "choice":
            # Strings in Lark's syntax have the escapes of JSON.
            choices = map(json.dumps, json.loads(grammar_spec.spec))
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}")
        case "grammar":
            _check_repeats(grammar_spec)
            return LLMatcher.grammar_from_lark(_as_lark(grammar_spec.spec))
        case "output":
            raise GrammarError("the phases of an output have grammars of their own")


def grammar_of_phase(phase: Phase) -> str:
    """The grammar of a phase that has one, in llguidance's format. It was written by the router, which has tried the
    parts of it that come from a client. Raises GrammarError."""
    grammars: list[dict[str, Any]] = [{"lark_grammar": phase.grammar}]
    if phase.content is not None:
        content = grammar_of(phase.content)  # Lark, or JSON with one grammar
        (part,) = json.loads(content)["grammars"] if content.startswith("{") else [{"lark_grammar": content}]
        grammars.append(part | {"name": CONTENT})
    return json.dumps({"grammars": grammars})


def json_options(style: JsonStyle) -> dict[str, Any]:
    """Options for llguidance in a JSON schema. A `oneOf` whose branches llguidance cannot separate is an `anyOf`."""
    white_space: dict[str, Any] = {"whitespace_flexible": False}
    match style.whitespace:
        case "optional":
            white_space |= {"item_separator": ",[ ]?", "key_separator": ":[ ]?"}
        case "any":
            white_space = {"whitespace_pattern": rf"[ \t\n\r]{{1,{MAX_WHITE_SPACE}}}"}
    return {"x-guidance": {**white_space, "coerce_one_of": True}}


def any_object(style: JsonStyle) -> GrammarSpec:
    """The grammar of answers that are any JSON object."""
    schema = {"type": "object"} if style.open_objects else {**FREE_OBJECT, "$defs": {NAME: DEFINITION}}
    return GrammarSpec("json", json.dumps({**schema, **json_options(style)}, separators=(",", ":")))


def parser_limits() -> LLParserLimits:
    """Limits for the work of a grammar: with these limits, a mask over 4096 tokens takes tens of milliseconds at
    most."""
    from llguidance import LLParserLimits

    return LLParserLimits(step_lexer_fuel=MAX_STEP_FUEL, verbose_errors=False)


def _check_repeats(grammar_spec: GrammarSpec) -> None:
    """Raises GrammarError if a regular expression repeats something too often."""
    for count in re.findall(r"\{\s*(\d{0,9}\s*,\s*\d{7,}|\d{7,})", grammar_spec.spec):
        digits = count.rpartition(",")[2].strip().lstrip("0") or "0"
        if len(digits) > len(str(MAX_REPEATS)) or int(digits) > MAX_REPEATS:
            raise GrammarError(f"'{{{count[:40]}}}' is too often: {MAX_REPEATS} times is the most")


def _check_divisors(schema: str) -> None:
    """Raises GrammarError if the schema is not JSON, or if the least common multiple of its `multipleOf`s is too large:
    several that apply together become one automaton, whose states nothing else counts."""
    try:
        left: list[Any] = [json.loads(schema)]
    except (ValueError, RecursionError) as error:
        raise GrammarError(str(error)) from error
    divisors = set()
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += value.values()
            divisor = value.get("multipleOf")
            if isinstance(divisor, int | float):
                divisors.add(_fraction(divisor))
    denominator = math.lcm(*(divisor.denominator for divisor in divisors))
    if math.lcm(*(int(divisor * denominator) for divisor in divisors)) > MAX_DIVISOR:
        listed = ", ".join(_decimal(divisor) for divisor in sorted(divisors)[:8])
        raise GrammarError(f"'multipleOf' {listed}: the digits of a common multiple go beyond {MAX_DIVISOR}")


def _fraction(number: float) -> Fraction:
    """The number as an exact fraction of its decimal form: 1.25 is 5/4."""
    try:
        return abs(Fraction(repr(number)))
    except ValueError as error:  # infinite
        raise GrammarError(f"'multipleOf' {number} is no number") from error


def _decimal(number: Fraction) -> str:
    try:
        return str(float(number))
    except OverflowError:
        return "inf"


def _as_lark(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    if "%json" in text:
        raise GrammarError("'%json' is not served inside a grammar")
    try:
        return any_to_lark(text)
    except Exception as error:  # the parser raises many kinds
        raise GrammarError(f"it is neither a Lark nor a GBNF grammar: {error}") from error


def complaint(grammar_spec: GrammarSpec) -> str | None:
    """Why no output could match this grammar, in the form that workers get, with any vocabulary, or only at too high a
    cost; None if it is fine. To be called in a process that may be killed (`grammar_trial.py`): most grammars take
    milliseconds, but nothing here bounds the time."""
    from llguidance import LLMatcher, LLTokenizer

    try:
        grammar = grammar_of(grammar_spec)
    except GrammarError as error:
        return str(error)
    tokenizer = LLTokenizer("byte")  # one token per byte: the verdict does not depend on a model's vocabulary
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    _begin_output(matcher)
    if matcher.is_error() or not (matcher.is_accepting() or not matcher.is_stopped()):
        return matcher.get_error() or "nothing can follow it"
    return None


def _begin_output(matcher: LLMatcher) -> None:
    """Follows the grammar for some bytes of an output (always the same ones), and looks one byte to each side of the
    way. The library works much out only when it is needed, and a grammar that turned out too complex then would end an
    answer in the middle. The items of its first row, for instance, are counted with the first byte that does not end a
    lexeme. In an error of `matcher` all this ends."""
    for number in range(NUM_TRIED_BYTES):
        allowed = _allowed(matcher)
        for byte in allowed:
            aside = matcher.deep_copy()
            aside.consume_token(byte)
            if aside.is_error():
                matcher.consume_token(byte)
                return
        if not allowed:
            return
        matcher.consume_token(allowed[number * 7919 % len(allowed)])


def _allowed(matcher: LLMatcher) -> list[int]:
    """The bytes that may come next; none after an error."""
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    return [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1] if mask else []
