"""Reads the regular expressions of JSON schemas: those of ECMA-262, and what Python and Rust write differently.

Greedy and lazy quantifiers match the same texts, and so do groups of every kind; they are parsed alike. What cannot be
part of a regular language in the strict sense (backreferences) and word boundaries are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from slipstream.router.structured_output.regex import expression as regex
from slipstream.router.structured_output.regex.expression import Chars, Ranges

MAX_DEPTH = 60
MAX_REPEATS = 1_000_000

DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
# White space and line ends of ECMA-262.
SPACES: Ranges = regex.merged(
    (
        *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    )
)
NO_LINE_END: Ranges = regex.inverted(((10, 10), (13, 13), (0x2028, 0x2029)))
ESCAPED_CHARS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0, "a": 7}
CLASSES = {"d": DIGITS, "w": WORD, "s": SPACES}
QUANTIFIER = re.compile(r"([*+?]|\{(\d+)(?:(,)(\d*))?\})[?+]?")
GROUP = re.compile(r"\?(?:(:|=|!|<=|<!)|P?<([A-Za-z_$][\w$]*)>|([a-z]+)([:)])|#[^)]*\))")
HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[ux]\{([0-9a-fA-F]{1,6})\}")


class PatternError(ValueError):
    """A pattern is wrong or not supported; the text says which."""


@dataclass(frozen=True, slots=True)
class Set:
    chars: Chars


@dataclass(frozen=True, slots=True)
class Anchor:
    kind: Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class LookAround:
    """A condition on the text behind this point, or before it."""

    pattern: Pattern
    is_ahead: bool
    is_negative: bool


@dataclass(frozen=True, slots=True)
class PatternSequence:
    items: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    options: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Quantified:
    item: Pattern
    low: int
    high: int | None


Pattern = Set | Anchor | LookAround | PatternSequence | Alternatives | Quantified


def parse(text: str) -> Pattern:
    """Raises PatternError."""
    parser = _Parser(text)
    pattern = parser.alternatives(0)
    if parser.position < len(text):
        raise PatternError("it has a ')' too many")
    return pattern


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0
        self._ignores_case = False
        self._dot = NO_LINE_END

    def alternatives(self, depth: int) -> Pattern:
        if depth > MAX_DEPTH:
            raise PatternError(f"its groups are nested more than {MAX_DEPTH} deep")
        options = [self._sequence(depth)]
        while self._taken("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _sequence(self, depth: int) -> Pattern:
        items: list[Pattern] = []
        while self.position < len(self._text) and self._text[self.position] not in "|)":
            item = self._atom(depth)
            found = QUANTIFIER.match(self._text, self.position)
            if found:
                self.position = found.end()
                item = _quantified(item, found)
                if QUANTIFIER.match(self._text, self.position):
                    raise PatternError(f"nothing to repeat at position {self.position}")
            items.append(item)
        return items[0] if len(items) == 1 else PatternSequence(tuple(items))

    def _atom(self, depth: int) -> Pattern:
        char = self._next()
        match char:
            case "(":
                return self._group(depth)
            case "[":
                return Set(self._class())
            case "^":
                return Anchor("start")
            case "$":
                return Anchor("end")
            case ".":
                return Set(Chars(self._dot))
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError(f"nothing to repeat at position {self.position - 1}")
            case _:
                return Set(self._chars(((ord(char), ord(char)),)))

    def _group(self, depth: int) -> Pattern:
        look, flags = "", None
        if self._text.startswith("?", self.position):
            found = GROUP.match(self._text, self.position)
            if self._text.startswith("?P=", self.position):
                raise PatternError("backreferences are not served")
            if found is None:
                raise PatternError(f"'(' with {self._text[self.position : self.position + 3]!r} is not served")
            self.position = found.end()
            look = found[1] or ""
            if found[0].startswith("?#"):
                return PatternSequence(())
            if found[3]:
                before = self._ignores_case, self._dot
                self._set_flags(found[3])
                if found[4] == ")":
                    return PatternSequence(())
                flags = before
        inside = self.alternatives(depth + 1)
        if not self._taken(")"):
            raise PatternError("a ')' is missing")
        if flags is not None:
            self._ignores_case, self._dot = flags
        if look in ("", ":"):
            return inside
        return LookAround(inside, "<" not in look, "!" in look)

    def _set_flags(self, flags: str) -> None:
        for flag in flags:
            if flag == "i":
                self._ignores_case = True
            elif flag == "s":
                self._dot = regex.ANY_CHAR.ranges
            elif flag not in "ua":
                raise PatternError(f"the flag {flag!r} is not served")

    def _escape(self) -> Pattern:
        char = self._text[self.position : self.position + 1]
        if char in ("A", "Z", "z"):  # Python's and Rust's anchors of the whole text
            self.position += 1
            return Anchor("start" if char == "A" else "end")
        if char in ("b", "B"):
            raise PatternError(f"word boundaries ('\\{char}') are not served")
        if self._text.startswith("k<", self.position) or char in set("123456789"):
            raise PatternError("backreferences are not served")
        return Set(self._escaped_chars())

    def _escaped_chars(self) -> Chars:
        """What an escape stands for, inside a class or outside."""
        hexadecimal = HEX.match(self._text, self.position)
        if hexadecimal:
            self.position = hexadecimal.end()
            point = int(hexadecimal[1] or hexadecimal[2] or hexadecimal[3], 16)
            if 0xD800 <= point < 0xDC00:  # the first half of a pair
                second = HEX.match(self._text, self.position + 1) if self._taken("\\", peek=True) else None
                low = int(second[2], 16) if second and second[2] else 0
                if second is None or not 0xDC00 <= low < 0xE000:
                    raise PatternError("half a surrogate pair is no character")
                self.position = second.end()
                point = 0x10000 + ((point - 0xD800) << 10) + low - 0xDC00
            if point > regex.MAX_CODE_POINT or 0xDC00 <= point < 0xE000:
                raise PatternError(f"there is no character {point:X}")
            return self._chars(((point, point),))
        char = self._next()
        if char.lower() in CLASSES:
            ranges = CLASSES[char.lower()]
            return Chars(ranges if char.islower() else regex.inverted(ranges))
        if char in "pP":
            return self._unicode_class(char)
        if char == "c":
            point = ord(self._next()) & 31
        elif char in ESCAPED_CHARS:
            point = ESCAPED_CHARS[char]
        elif char.isascii() and char.isalnum():
            raise PatternError(f"the escape '\\{char}' is not served")
        else:
            point = ord(char)
        return self._chars(((point, point),))

    def _unicode_class(self, char: str) -> Chars:
        found = re.compile(r"\{\^?[\w=\-: ]+\}|[A-Z]").match(self._text, self.position)
        if found is None:
            raise PatternError(f"'\\{char}' without a name")
        self.position = found.end()
        return Chars((), (f"\\{char}{found[0]}",))

    def _class(self) -> Chars:
        is_negated = self._taken("^")
        ranges: list[tuple[int, int]] = []
        classes: list[str] = []
        while not self._taken("]"):
            chars = self._class_atom()
            if self._text.startswith("-", self.position) and not self._text.startswith("-]", self.position):
                low = chars.ranges
                if len(low) == 1 and low[0][0] == low[0][1] and not chars.classes:
                    self.position += 1
                    high = self._class_atom()
                    if high.classes or len(high.ranges) != 1 or high.ranges[0][0] < low[0][0]:
                        raise PatternError(f"a range is out of order at position {self.position}")
                    chars = self._chars(((low[0][0], high.ranges[0][0]),))
            ranges += chars.ranges
            classes += chars.classes
        cased = self._chars(regex.merged(ranges)).ranges
        if classes:
            return Chars(cased, tuple(classes), is_negated)
        return Chars(regex.inverted(cased) if is_negated else cased)

    def _class_atom(self) -> Chars:
        char = self._next()
        if char == "[" and self._text.startswith(":", self.position):
            raise PatternError("'[:' is not served")
        if char != "\\":
            return Chars(((ord(char), ord(char)),))
        if self._taken("b"):
            return Chars(((8, 8),))
        return self._escaped_chars()

    def _chars(self, ranges: Ranges) -> Chars:
        """The characters, with those that differ in case if that is to be ignored."""
        if not self._ignores_case:
            return Chars(ranges)
        more = list(ranges)
        for low, high in ranges:
            for point in range(low, min(high, low + 1000) + 1):
                for other in (chr(point).lower(), chr(point).upper()):
                    if len(other) == 1:
                        more.append((ord(other), ord(other)))
        return Chars(regex.merged(more))

    def _next(self) -> str:
        if self.position == len(self._text):
            raise PatternError("it ends too early")
        self.position += 1
        return self._text[self.position - 1]

    def _taken(self, char: str, *, peek: bool = False) -> bool:
        is_next = self._text.startswith(char, self.position)
        self.position += is_next and not peek
        return is_next


def _quantified(item: Pattern, found: re.Match[str]) -> Pattern:
    """The item as often as a quantifier says."""
    match found[1]:
        case "*":
            low, high = 0, None
        case "+":
            low, high = 1, None
        case "?":
            low, high = 0, 1
        case _:
            low = _count(found[2])
            high = low if found[3] is None else _count(found[4]) if found[4] else None
    if high is not None and high < low:
        raise PatternError(f"'{found[1]}' is out of order")
    return Quantified(item, low, high)


def _count(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(MAX_REPEATS)) or int(digits) > MAX_REPEATS:
        raise PatternError(f"'{{{digits[:40]}}}' is too often: {MAX_REPEATS} times is the most")
    return int(digits)
