"""Patterns of JSON schemas as expressions that llguidance takes.

A pattern is searched for, with anchors and look-around; llguidance wants the whole text, without look-around. So a
pattern becomes the set of texts in which it is found: what follows a point is a set of its own, and a look-ahead is an
intersection with it.

    ^(?!x)a|b$   =   (a.*  and not  x.*)  or  .*b
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.router.structured_output.regex import expression as regex
from slipstream.router.structured_output.regex.automaton import TooComplexError, plain
from slipstream.router.structured_output.regex.expression import ANY_CHAR, ANY_TEXT, EMPTY, NOTHING, And, Regex
from slipstream.router.structured_output.regex.pattern_parser import (
    Alternatives,
    Anchor,
    LookAround,
    Pattern,
    PatternError,
    PatternSequence,
    Quantified,
    Set,
    parse,
)

MAX_SPLITS = 200  # alternatives with anchors in them, which have to be separated

Rest = Callable[[bool], Regex]  # what may follow, by whether the text before is empty


def searched(pattern: str) -> Regex:
    """The texts in which a pattern is found. Raises PatternError."""
    return _Search().found(parse(pattern))


def as_patterns(node: Regex) -> list[str]:
    """Equivalent patterns without look-around. Raises PatternError if that would be too complex."""
    parts = node.items if isinstance(node, And) else (node,)
    try:
        return [f"^(?:{regex.written(part if regex.is_plain(part) else plain(part))})$" for part in parts]
    except TooComplexError:
        raise PatternError("its look-around is too complex") from None


def as_pattern(node: Regex) -> str:
    """One equivalent pattern."""
    if len(as_patterns(node)) > 1:
        try:
            node = plain(node)
        except TooComplexError:
            raise PatternError("its look-around is too complex") from None
    return as_patterns(node)[0]


class _Search:
    def __init__(self) -> None:
        self._num_splits = 0

    def found(self, pattern: Pattern) -> Regex:
        def anything(is_at_start: bool) -> Regex:
            return ANY_TEXT

        if isinstance(pattern, Alternatives) and _looks_back(pattern):
            return regex.either(*map(self.found, pattern.options))
        if _looks_back(pattern):  # what is before a point is known only from the beginning of the text
            items = pattern.items if isinstance(pattern, PatternSequence) else (pattern,)
            return self._in_sequence((Quantified(Set(ANY_CHAR), 0, None), *items), True, anything)
        inside = self._matched(pattern, False, anything)
        if not _has_anchors(pattern, "start"):
            return regex.cat(ANY_TEXT, inside)
        at_start = self._matched(pattern, True, anything)
        return regex.either(at_start, regex.cat(regex.repeat(ANY_CHAR, 1, None), inside))

    def _matched(self, pattern: Pattern, is_at_start: bool, rest: Rest) -> Regex:
        """The texts that begin with a match and continue with what follows it."""
        if _is_simple(pattern):
            return self._simple_then(pattern, is_at_start, rest)
        self._num_splits += 1
        if self._num_splits > MAX_SPLITS:
            raise PatternError("its look-around is too complex")
        match pattern:
            case Anchor("start"):
                return rest(True) if is_at_start else NOTHING
            case Anchor():
                return EMPTY if regex.is_nullable(rest(is_at_start)) else NOTHING
            case LookAround():
                return self._looked(pattern, is_at_start, rest)
            case Alternatives(options):
                return regex.either(*(self._matched(option, is_at_start, rest) for option in options))
            case PatternSequence(items):
                return self._in_sequence(items, is_at_start, rest)
            case Quantified(item, low, high):
                return self._repeated(item, low, high, is_at_start, rest)
            case Set():
                raise AssertionError("a set is simple")

    def _in_sequence(self, items: tuple[Pattern, ...], is_at_start: bool, rest: Rest) -> Regex:
        if not items:
            return rest(is_at_start)
        for number, item in enumerate(items):
            if isinstance(item, LookAround) and not item.is_ahead:
                return self._looked_back(items[:number], item, items[number + 1 :], is_at_start, rest)
            if not _is_simple(item):
                break
        if len(items) > 1 and isinstance(items[1], Anchor) and items[1].kind == "end":
            tempered = self._tempered(items[0])
            if tempered is not None and regex.is_nullable(rest(False)):
                return tempered
        # Where nothing asks for it, simple items are joined before what follows is looked at.
        num_simple = 0
        while num_simple < len(items) and _is_simple(items[num_simple]):
            num_simple += 1
        if num_simple == 0:
            return self._matched(items[0], is_at_start, lambda at_start: self._in_sequence(items[1:], at_start, rest))
        head, tail = PatternSequence(items[:num_simple]), items[num_simple:]
        return self._simple_then(head, is_at_start, lambda at_start: self._in_sequence(tail, at_start, rest))

    def _simple_then(self, pattern: Pattern, is_at_start: bool, rest: Rest) -> Regex:
        node = _simple(pattern)
        moved_on = regex.cat(node, rest(False))
        if is_at_start and regex.is_nullable(node):  # an anchor may still come
            stayed = rest(True)
            return moved_on if stayed == rest(False) else regex.either(moved_on, stayed)
        return moved_on

    def _looked(self, look: LookAround, is_at_start: bool, rest: Rest) -> Regex:
        if not look.is_ahead:
            return self._looked_back((), look, (), is_at_start, rest)
        condition = self._matched(look.pattern, is_at_start, lambda at_start: ANY_TEXT)
        return regex.both(regex.negated(condition) if look.is_negative else condition, rest(is_at_start))

    def _looked_back(
        self, before: tuple[Pattern, ...], look: LookAround, after: tuple[Pattern, ...], is_at_start: bool, rest: Rest
    ) -> Regex:
        """`before`, which is simple, with the condition on it, and what follows. It can only be judged if `before` is
        all that is before."""
        if not _is_simple(look.pattern):
            raise PatternError("look-around inside a look-behind is not served")
        if not is_at_start:
            raise PatternError("a look-behind is only served behind an expression without look-around")
        ended = regex.cat(ANY_TEXT, _simple(look.pattern))
        condition = regex.negated(ended) if look.is_negative else ended
        prefix = regex.both(condition, _simple(PatternSequence(before)))
        return regex.cat(prefix, self._in_sequence(after, False, rest))

    def _tempered(self, pattern: Pattern) -> Regex | None:
        """The texts of `((?!x).)*` before the end: nowhere in them begins an x. None if it is not of that form."""
        if not isinstance(pattern, Quantified) or pattern.low > 1 or pattern.high is not None:
            return None
        if not isinstance(pattern.item, PatternSequence) or len(pattern.item.items) != 2:
            return None
        look, step = pattern.item.items
        if not isinstance(look, LookAround) or not look.is_ahead or not look.is_negative or not isinstance(step, Set):
            return None
        if _has_anchors(look.pattern, "start"):
            return None
        found = regex.cat(ANY_TEXT, self._matched(look.pattern, False, lambda at_start: ANY_TEXT))
        if regex.is_nullable(found):
            return None
        return regex.both(regex.repeat(_simple(step), pattern.low, None), regex.negated(found))

    def _repeated(self, item: Pattern, low: int, high: int | None, is_at_start: bool, rest: Rest) -> Regex:
        if isinstance(item, Anchor | LookAround):  # a condition that holds once holds as often as one likes
            return self._matched(item, is_at_start, rest) if low else rest(is_at_start)
        if high is None or high > 4:
            raise PatternError("look-around and anchors inside a repetition are not served")
        options = []
        for count in range(low, high + 1):
            options.append(self._in_sequence((item,) * count, is_at_start, rest))
        return regex.either(*options)


def _is_simple(pattern: Pattern) -> bool:
    """Whether there are neither anchors nor look-around in it."""
    match pattern:
        case Set():
            return True
        case Anchor() | LookAround():
            return False
        case PatternSequence(items) | Alternatives(items):
            return all(map(_is_simple, items))
        case Quantified(item, _, _):
            return _is_simple(item)


def _looks_back(pattern: Pattern) -> bool:
    match pattern:
        case LookAround(inside, is_ahead, _):
            return not is_ahead or _looks_back(inside)
        case PatternSequence(items) | Alternatives(items):
            return any(map(_looks_back, items))
        case Quantified(item, _, _):
            return _looks_back(item)
        case _:
            return False


def _has_anchors(pattern: Pattern, kind: str) -> bool:
    match pattern:
        case Set():
            return False
        case Anchor():
            return pattern.kind == kind
        case LookAround(inside, _, _) | Quantified(inside, _, _):
            return _has_anchors(inside, kind)
        case PatternSequence(items) | Alternatives(items):
            return any(_has_anchors(item, kind) for item in items)


def _simple(pattern: Pattern) -> Regex:
    match pattern:
        case Set(chars):
            return chars if chars.ranges or chars.classes else NOTHING
        case PatternSequence(items):
            return regex.cat(*map(_simple, items))
        case Alternatives(options):
            return regex.either(*map(_simple, options))
        case Quantified(item, low, high):
            return regex.repeat(_simple(item), low, high)
        case Anchor() | LookAround():
            raise AssertionError("not simple")
