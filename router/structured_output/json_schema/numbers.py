"""Bounds of numbers, in the range in which llguidance turns them into expressions without mistakes.

It computes with doubles and 64-bit integers: it fails beyond them, and rounds before. So bounds are rounded inward to a
double, and those that lie beyond are moved inward to the last ones that work. Nothing outside of the client's bounds is
ever allowed by that. Numbers with bounds are written without an exponent.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

from slipstream.router.structured_output.json_schema.errors import SchemaError, child

MAX_INTEGER = 2**63 - 1
MIN_INTEGER = -(2**63) + 1024  # the next double to -2**63
MAX_NUMBER = 10**17
SMALLEST = Fraction(1, 10**20)  # bounds that are closer to 0 are moved there
NUM_STEPS = 16  # of doubles; with one, llguidance rounds some bounds to the next integer
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


def bounds(schema: dict[str, Any], pointer: str, *, is_integer: bool) -> dict[str, Any]:
    """The bounds in a schema, as llguidance should be given them. Raises SchemaError if they leave no number, or none
    within reach."""
    if BOUNDS.isdisjoint(schema):
        return {}
    low, low_key = _bound(schema, pointer, "minimum", "exclusiveMinimum", max)
    high, high_key = _bound(schema, pointer, "maximum", "exclusiveMaximum", min)
    is_open_low = low_key == "exclusiveMinimum"
    is_open_high = high_key == "exclusiveMaximum"
    if low is not None and high is not None and (low > high or (low == high and (is_open_low or is_open_high))):
        raise SchemaError(
            child(pointer, low_key), f"no number is in the bounds {schema[low_key]} and {schema[high_key]}"
        )
    if is_integer:
        return _integers(schema, pointer, (low, low_key), (high, high_key))
    return _numbers(schema, pointer, (low, low_key), (high, high_key))


def number(value: Any, pointer: str) -> Fraction:
    """A number of a schema, exactly as it is written. Raises SchemaError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError(pointer, f"{_short(value)} is not a number")
    if abs(value) > sys.float_info.max or value != value:
        raise SchemaError(pointer, f"{str(value)[:40]} is beyond what a double can hold")
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def count(value: Any, pointer: str) -> int:
    """A number of characters, items or properties. Raises SchemaError."""
    exact = number(value, pointer)
    if exact < 0 or exact.denominator != 1:
        raise SchemaError(pointer, f"{_short(value)} is not a count")
    return int(exact)


def _bound(
    schema: dict[str, Any], pointer: str, key: str, open_key: str, strictest: Any
) -> tuple[Fraction | None, str]:
    """The stricter one of a bound and its exclusive form, and its key."""
    found: list[tuple[Fraction, str]] = []
    if key in schema:
        # Draft 4 says by a boolean whether the bound itself is excluded.
        found.append((number(schema[key], child(pointer, key)), open_key if schema.get(open_key) is True else key))
    if open_key in schema and not isinstance(schema[open_key], bool):
        found.append((number(schema[open_key], child(pointer, open_key)), open_key))
    if not found:
        return None, key
    value = strictest(value for value, _ in found)
    return value, open_key if (value, open_key) in found else key


def _integers(
    schema: dict[str, Any], pointer: str, lower: tuple[Fraction | None, str], upper: tuple[Fraction | None, str]
) -> dict[str, Any]:
    (low, low_key), (high, high_key) = lower, upper
    least = greatest = None
    if low is not None:
        least = max(_rounded_up(math.floor(low) + 1 if low_key.startswith("ex") else math.ceil(low)), MIN_INTEGER)
    if high is not None:
        greatest = _at_most(math.ceil(high) - 1 if high_key.startswith("ex") else math.floor(high))
    if least is not None and least >= 10**17 and greatest is None:
        greatest = MAX_INTEGER
    if greatest is not None and greatest <= -(10**17) and least is None:
        least = MIN_INTEGER
    if least is not None and greatest is not None and least > greatest:
        key = low_key if low is not None else high_key
        raise SchemaError(child(pointer, key), f"no integer that is served is in the bounds; {_served()}")
    return {
        **({} if least is None else {"minimum": least}),
        **({} if greatest is None else {"maximum": greatest}),
    }


def _numbers(
    schema: dict[str, Any], pointer: str, lower: tuple[Fraction | None, str], upper: tuple[Fraction | None, str]
) -> dict[str, Any]:
    (low, low_key), (high, high_key) = lower, upper
    out: dict[str, Any] = {}
    least = greatest = None
    if low is not None:
        least, low_key = _inward(low, low_key, "minimum", 1)
        out[low_key] = least
    if high is not None:
        greatest, high_key = _inward(high, high_key, "maximum", -1)
        if greatest == 0 and high_key == "exclusiveMaximum":  # or llguidance would allow -0
            greatest, high_key = _next_to(greatest, -1), "maximum"
        out[high_key] = greatest
    if least is not None and greatest is not None and greatest - least < 1:
        # Both begin with the same integer, and llguidance would allow it although it is excluded.
        if low_key == "exclusiveMinimum" and least >= 0 and least.is_integer():
            least, low_key = _next_to(least, 1), "minimum"
        if high_key == "exclusiveMaximum" and greatest < 0 and greatest.is_integer():
            greatest, high_key = _next_to(greatest, -1), "maximum"
        out = {low_key: least, high_key: greatest}
    is_open = low_key.startswith("ex") or high_key.startswith("ex")
    is_empty = least is not None and greatest is not None and (least > greatest or (least == greatest and is_open))
    if is_empty or (least or 0) > MAX_NUMBER or (greatest or 0) < -MAX_NUMBER:
        key = "minimum" if "minimum" in schema else next(key for key in schema if key in BOUNDS)
        raise SchemaError(child(pointer, key), f"no number that is served is in the bounds; {_served()}")
    if least is not None and least >= MAX_NUMBER / 10 and greatest is None:
        out["maximum"] = MAX_NUMBER
    if greatest is not None and greatest <= -MAX_NUMBER / 10 and least is None:
        out["minimum"] = -MAX_NUMBER
    return out


def _inward(bound: Fraction, key: str, closed_key: str, sign: int) -> tuple[float, str]:
    """A bound as a double that is not further out, and its key; `sign` says in which direction inward is."""
    if sign * bound < -MAX_NUMBER:
        return -sign * float(MAX_NUMBER), closed_key
    if 0 < abs(bound) < SMALLEST:
        return (sign * float(SMALLEST), closed_key) if sign * bound > 0 else (0.0, closed_key)
    value = float(bound)
    if Fraction(repr(value)) == bound:
        return value, key
    if sign * (Fraction(repr(value)) - bound) < 0:
        value = math.nextafter(value, sign * math.inf)
    return value, closed_key


def _next_to(bound: float, sign: int) -> float:
    """A number close to an integer, in this direction, that llguidance does not round to it."""
    return sign * (float(SMALLEST) if bound == 0 else abs(bound) + NUM_STEPS * math.ulp(bound))


def _rounded_up(value: int) -> int:
    """The least integer from there that a double holds exactly."""
    step = 1 << max(abs(value).bit_length() - 53, 0)
    return -(-value // step) * step


def _at_most(value: int) -> int:
    """The greatest integer up to there that is served."""
    return MAX_INTEGER if value >= MAX_INTEGER else -_rounded_up(-value)


def _served() -> str:
    return f"integers go from {MIN_INTEGER} to {MAX_INTEGER}, numbers with bounds to {MAX_NUMBER:.0e}"


def _short(value: Any) -> str:
    return repr(value)[:60]
