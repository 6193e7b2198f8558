"""The keywords of strings."""

from __future__ import annotations

import re
from typing import Any

from slipstream.router.structured_output.json_schema import formats, numbers
from slipstream.router.structured_output.json_schema.errors import SchemaError, child
from slipstream.router.structured_output.regex.pattern_parser import PatternError
from slipstream.router.structured_output.regex.patterns import as_patterns, searched

MAX_LENGTH = 1_000_000
# How pydantic up to 2.13 describes decimals. It leaves out that they end with the text.
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*"
DECIMAL_DIGITS = re.compile(r"\(\?:\\d\{0,(\d{1,4})\}\|\(\?=.*?0\*\$\)(?:\\d\{0,\d+\}\\\.\\d\{0,(\d{1,4})\})?.*\)$")


def rewrite_string(schema: dict[str, Any], pointer: str, out: dict[str, Any]) -> list[Any]:
    """Adds the keywords of strings to `out`, and returns further schemas that have to hold beside it."""
    patterns: list[str] = []
    if "pattern" in schema:
        patterns += _patterns(schema["pattern"], child(pointer, "pattern"))
    name = schema.get("format")
    if "format" in schema and not isinstance(name, str):
        raise SchemaError(child(pointer, "format"), f"{name!r:.60} is not a name")
    if name in formats.OF_THE_LIBRARY:
        out["format"] = name
    elif isinstance(name, str) and (pattern := formats.pattern_of(name)) is not None:
        patterns.append(pattern)
    for key in ("minLength", "maxLength"):
        if key in schema:
            out[key] = numbers.count(schema[key], child(pointer, key))
    if out.get("minLength", 0) > MAX_LENGTH:
        raise SchemaError(child(pointer, "minLength"), f"{MAX_LENGTH} characters are the most")
    if "maxLength" in out:
        out["maxLength"] = min(out["maxLength"], MAX_LENGTH)
    if patterns:
        out["pattern"] = patterns[0]
    return [{"pattern": pattern} for pattern in patterns[1:]]


def _patterns(text: Any, at: str) -> list[str]:
    if not isinstance(text, str):
        raise SchemaError(at, f"{text!r:.60} is not a pattern")
    try:
        if text.startswith(DECIMAL):
            return _decimal(text)
        return as_patterns(searched(text))
    except (PatternError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SchemaError(at, f"the pattern {text[:60]!r} is not served: {reason}") from error


def _decimal(text: str) -> list[str]:
    """A decimal and nothing behind it. A look-ahead that counts digits is followed by fewer of them."""
    counted = DECIMAL_DIGITS.search(text)
    if counted is None:
        return as_patterns(searched(f"^(?:{text})$"))
    num_digits, num_decimals = int(counted[1]), int(counted[2] or 0)
    whole = rf"\d{{1,{num_digits}}}" if num_digits else "0"
    decimals = rf"(?:\.\d{{1,{num_decimals}}})?" if num_decimals else ""
    return as_patterns(searched(rf"^[+-]?{whole}{decimals}$"))
