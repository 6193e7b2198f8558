"""From the JSON schema of a request to the grammar that workers get, or to the pointer of its mistake."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from slipstream.router.protocol.grammar import (
    ENDLESS,
    MAX_DIVISOR,
    GrammarError,
    JsonStyle,
    json_options,
    parser_limits,
)
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.structured_output.json_schema.document import Document
from slipstream.router.structured_output.json_schema.errors import SchemaError, child
from slipstream.router.structured_output.json_schema.rewrite import Rewritten, rewrite

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_SPEC_BYTES = 512 << 10  # a schema becomes some times longer where references are used in several ways
MAX_LOOKS = 400
MAX_DIGITS = 320
UNDECIDED = "Unable to determine if regex is empty"  # as llguidance says it, with the whole expression behind it
TOO_INTRICATE = "it is too complex: patterns, formats and lengths of a text that apply together"


def json_grammar_spec(schema: str, style: JsonStyle) -> GrammarSpec:
    """Raises GrammarError, with the pointer to the keyword that is the reason."""
    try:
        value = json.loads(schema, parse_int=_integer)
        rewritten = rewrite(value, open_objects=style.open_objects)
        _check_divisors(rewritten)
    except ValueError as error:  # a SchemaError is one
        raise GrammarError(str(error)) from error
    except RecursionError as error:
        raise GrammarError("it is nested too deeply") from error
    try:
        spec = orjson.dumps({**rewritten.schema, **json_options(style)})
    except orjson.JSONEncodeError as error:  # for its depth
        raise GrammarError("what it becomes is nested too deeply") from error
    if len(spec) > MAX_SPEC_BYTES:
        raise GrammarError(f"what it becomes has more than {MAX_SPEC_BYTES} bytes")
    fault = _Faults(rewritten, style, Document(value)).fault()
    if fault is not None:
        raise GrammarError(fault)
    return GrammarSpec("json", spec.decode())


def _integer(digits: str) -> int | float:
    """Infinity for more digits than a double can have, because Python refuses to read thousands of them."""
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _check_divisors(rewritten: Rewritten) -> None:
    """Raises SchemaError if the least common multiple of all `multipleOf`s is too large: several that apply together
    become one automaton, whose states nothing else counts."""
    denominator = math.lcm(*(divisor.denominator for divisor, _ in rewritten.divisors))
    product = 1
    for divisor, pointer in rewritten.divisors:
        product = math.lcm(product, int(divisor * denominator))
        if product > MAX_DIVISOR:
            others = "" if len(rewritten.divisors) == 1 else " that it has with others in the schema"
            raise SchemaError(
                pointer, f"the digits of the least common multiple{others} of 'multipleOf' go beyond {MAX_DIVISOR}"
            )


class _Faults:
    """Finds the innermost part of a schema that llguidance refuses."""

    def __init__(self, rewritten: Rewritten, style: JsonStyle, document: Document) -> None:
        from llguidance import LLTokenizer

        self._document = document

        self._rewritten = rewritten
        self._options = json_options(style)
        self._tokenizer: LLTokenizer = LLTokenizer("byte")
        self._num_looks = 0

    def fault(self) -> str | None:
        schema = self._rewritten.schema
        reason = self._reason(schema)
        if reason is None:
            return None
        pointer = ""
        inner: Any = schema
        while inner is not None:
            pointer = self._rewritten.pointer_of(inner) or pointer
            inner, reason = self._part_at_fault(inner, reason)
        if reason.startswith(UNDECIDED):
            at = (child(pointer, key) for key in ("pattern", "format"))
            return str(SchemaError(next(filter(self._document.has, at), pointer), TOO_INTRICATE))
        words = "it refers to itself without end" if reason.startswith(ENDLESS) else " ".join(reason.split())
        return str(SchemaError(pointer, words))

    def _part_at_fault(self, schema: dict[str, Any], reason: str) -> tuple[Any, str]:
        for part in _parts(schema):
            if self._num_looks == MAX_LOOKS:
                break
            found = self._reason(part)
            if found is not None:
                return part, found
        return None, reason

    def _reason(self, schema: dict[str, Any]) -> str | None:
        from llguidance import LLMatcher

        self._num_looks += 1
        definitions = self._rewritten.schema.get("$defs", {})
        text = json.dumps({**schema, **({"$defs": definitions} if definitions else {}), **self._options})
        matcher = LLMatcher(
            self._tokenizer, LLMatcher.grammar_from_json_schema(text), log_level=0, limits=parser_limits()
        )
        if matcher.is_error():
            return str(matcher.get_error())
        return None if matcher.is_accepting() or not matcher.is_stopped() else "nothing can follow it"


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("properties", "patternProperties", "$defs"):
        yield from (part for part in schema.get(key, {}).values() if isinstance(part, dict))
    for key in ("prefixItems", "allOf", "anyOf", "oneOf"):
        yield from (part for part in schema.get(key, ()) if isinstance(part, dict))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield schema[key]
