"""Regular expressions as trees, with the operators of sets: intersection and complement.

All nodes are immutable. The functions that make them simplify, so that equal languages often are equal trees. A tree
describes whole texts: there are no anchors in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_CODE_POINT = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included, ascending and apart


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set. `classes` are Unicode classes such as `\\p{L}` that belong to it too."""

    ranges: Ranges
    classes: tuple[str, ...] = ()
    is_negated: bool = False  # only together with classes


@dataclass(frozen=True, slots=True)
class Cat:
    items: tuple[Regex, ...]  # none: the empty text


@dataclass(frozen=True, slots=True)
class Or:
    options: tuple[Regex, ...]  # none: no text at all


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Regex
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class And:
    items: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Not:
    item: Regex


Regex = Chars | Cat | Or | Repeat | And | Not

EMPTY = Cat(())
NOTHING = Or(())
ANY_CHAR = Chars(((0, MAX_CODE_POINT),))
ANY_TEXT = Repeat(ANY_CHAR, 0, None)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters as ascending ranges that do not touch."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def inverted(ranges: Ranges) -> Ranges:
    """All other characters."""
    out, start = [], 0
    for low, high in ranges:
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        out.append((start, MAX_CODE_POINT))
    return tuple(out)


def cat(*items: Regex) -> Regex:
    flat: list[Regex] = []
    for item in items:
        if item == NOTHING:
            return NOTHING
        parts = item.items if isinstance(item, Cat) else (item,)
        for part in parts:
            if part == ANY_TEXT and flat and flat[-1] == ANY_TEXT:
                continue
            flat.append(part)
    return flat[0] if len(flat) == 1 else Cat(tuple(flat))


def either(*options: Regex) -> Regex:
    flat: dict[Regex, None] = {}
    for option in options:
        for part in option.options if isinstance(option, Or) else (option,):
            flat[part] = None
    if ANY_TEXT in flat:
        return ANY_TEXT
    plain = [part for part in flat if isinstance(part, Chars) and not part.classes]
    if len(plain) > 1:
        ranges = merged(pair for part in plain for pair in part.ranges)
        rest = [part for part in flat if part not in plain]
        flat = dict.fromkeys([Chars(ranges), *rest])
    return next(iter(flat)) if len(flat) == 1 else Or(tuple(sorted(flat, key=hash)))


def repeat(item: Regex, low: int, high: int | None) -> Regex:
    if high == 0 or item == EMPTY:
        return EMPTY
    if item == NOTHING:
        return NOTHING if low else EMPTY
    if (low, high) == (1, 1):
        return item
    if isinstance(item, Repeat) and item.low <= 1 and item.high is None and low <= 1:
        return Repeat(item.item, min(item.low, low), None)
    return Repeat(item, low, high)


def both(*items: Regex) -> Regex:
    flat: dict[Regex, None] = {}
    for item in items:
        for part in item.items if isinstance(item, And) else (item,):
            if part == NOTHING:
                return NOTHING
            if part != ANY_TEXT:
                flat[part] = None
    if not flat:
        return ANY_TEXT
    return next(iter(flat)) if len(flat) == 1 else And(tuple(sorted(flat, key=hash)))


def negated(item: Regex) -> Regex:
    if isinstance(item, Not):
        return item.item
    if item == NOTHING:
        return ANY_TEXT
    return NOTHING if item == ANY_TEXT else Not(item)


def is_nullable(node: Regex) -> bool:
    """Whether the empty text matches."""
    match node:
        case Chars():
            return False
        case Cat(items) | And(items):
            return all(map(is_nullable, items))
        case Or(options):
            return any(map(is_nullable, options))
        case Repeat(item, low, _):
            return low == 0 or is_nullable(item)
        case Not(item):
            return not is_nullable(item)


def is_plain(node: Regex) -> bool:
    """Whether there is neither an intersection nor a complement in it."""
    match node:
        case Chars():
            return True
        case Cat(items) | Or(items):
            return all(map(is_plain, items))
        case Repeat(item, _, _):
            return is_plain(item)
        case And() | Not():
            return False


def literal(text: str) -> Regex:
    return cat(*(Chars(((ord(char), ord(char)),)) for char in text))


def written(node: Regex) -> str:
    """A plain expression in the syntax of Rust's `regex`, without anchors."""
    match node:
        case Chars():
            return _written_chars(node)
        case Cat(items):
            return "".join(f"(?:{written(item)})" if isinstance(item, Or) else written(item) for item in items)
        case Or(()):
            return "[^\\x{0}-\\x{10FFFF}]"
        case Or(options):
            return "|".join(map(written, options))
        case Repeat(item, low, high):
            text = written(item) if isinstance(item, Chars) else f"(?:{written(item)})"
            counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            return text + counts.get((low, high), f"{{{low},{'' if high is None else high}}}")
        case And() | Not():
            raise AssertionError("not a plain expression")


def _written_chars(chars: Chars) -> str:
    if chars == ANY_CHAR:
        return "(?s:.)"
    if len(chars.ranges) == 1 and not chars.classes and chars.ranges[0][0] == chars.ranges[0][1]:
        return _escaped(chars.ranges[0][0])
    inside = "".join(chars.classes) + "".join(
        _escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}" for low, high in chars.ranges
    )
    return f"[{'^' if chars.is_negated else ''}{inside}]"


def _escaped(code_point: int) -> str:
    char = chr(code_point)
    return char if (char.isascii() and char.isalnum()) or char == "_" else f"\\x{{{code_point:X}}}"
