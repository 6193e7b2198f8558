"""From an expression with intersections and complements to a plain one, over a deterministic automaton.

States are Brzozowski's derivatives (J. Brzozowski, Derivatives of Regular Expressions, 1964); the way back removes one
state after another. Both may grow exponentially, so both are bounded.
"""

from __future__ import annotations

from slipstream.router.structured_output.regex import expression as regex
from slipstream.router.structured_output.regex.expression import (
    EMPTY,
    NOTHING,
    And,
    Cat,
    Chars,
    Not,
    Or,
    Ranges,
    Regex,
    Repeat,
)

MAX_STATES = 400
MAX_SIZE = 6000  # nodes of all expressions on edges together
MAX_CHAR_CLASSES = 64


class TooComplexError(ValueError):
    """The expression is too expensive, or uses Unicode classes, whose members are not known here."""


def plain(node: Regex) -> Regex:
    """A plain expression for the same texts. Raises TooComplexError."""
    return _Eliminated(_Automaton(node)).expression()


class _Automaton:
    """`edges[i][j]`: the characters that lead from state i to state j. State 0 is the first."""

    def __init__(self, node: Regex) -> None:
        classes = _char_classes(node)
        numbers: dict[Regex, int] = {node: 0}
        self.edges: list[dict[int, Regex]] = []
        states = [node]
        cache: dict[tuple[Regex, int], Regex] = {}
        while len(self.edges) < len(states):
            state = states[len(self.edges)]
            edges: dict[int, Regex] = {}
            for ranges in classes:
                following = _derivative(state, ranges[0][0], cache)
                if following == NOTHING:
                    continue
                if following not in numbers:
                    if len(states) == MAX_STATES:
                        raise TooComplexError
                    numbers[following] = len(states)
                    states.append(following)
                number = numbers[following]
                edges[number] = regex.either(edges.get(number, NOTHING), Chars(ranges))
            self.edges.append(edges)
        self.finals = [number for number, state in enumerate(states) if regex.is_nullable(state)]


class _Eliminated:
    """The automaton with a state -1 before the first one and a state -2 behind the final ones, from which the states
    between are taken away one by one."""

    def __init__(self, automaton: _Automaton) -> None:
        self._out: dict[int, dict[int, Regex]] = {number: dict(edges) for number, edges in enumerate(automaton.edges)}
        self._out[-1] = {0: EMPTY}
        for number in automaton.finals:
            self._out[number][-2] = EMPTY
        self._into: dict[int, set[int]] = {}
        for source, edges in self._out.items():
            for target in edges:
                self._into.setdefault(target, set()).add(source)

    def expression(self) -> Regex:
        left = [number for number in self._out if number >= 0]
        while left:
            number = min(left, key=lambda state: len(self._into.get(state, ())) * len(self._out[state]))
            left.remove(number)
            self._remove(number)
        return self._out[-1].get(-2, NOTHING)

    def _remove(self, number: int) -> None:
        out = self._out.pop(number)
        loop = regex.repeat(out.pop(number, NOTHING), 0, None)
        sources = self._into.pop(number, set()) - {number}
        for target in out:
            self._into[target].discard(number)
        size = 0
        for source in sources:
            edges = self._out[source]
            before = edges.pop(number)
            for target, after in out.items():
                edges[target] = regex.either(edges.get(target, NOTHING), regex.cat(before, loop, after))
                self._into[target].add(source)
                size += _size(edges[target])
        if size > MAX_SIZE:
            raise TooComplexError


def _size(node: Regex) -> int:
    match node:
        case Chars():
            return 1
        case Cat(items) | Or(items) | And(items):
            return 1 + sum(map(_size, items))
        case Repeat(item, _, _) | Not(item):
            return 1 + _size(item)


def _char_classes(node: Regex) -> list[Ranges]:
    """All characters, in sets whose members the expression does not distinguish."""
    sets: dict[Ranges, None] = {}
    left: list[Regex] = [node]
    while left:
        match left.pop():
            case Chars(ranges, classes, _):
                if classes:
                    raise TooComplexError
                sets[ranges] = None
            case Cat(items) | Or(items) | And(items):
                left += items
            case Repeat(item, _, _) | Not(item):
                left.append(item)
    cuts = sorted({0} | {cut for ranges in sets for low, high in ranges for cut in (low, high + 1)})
    found: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, after in zip(cuts, [*cuts[1:], regex.MAX_CODE_POINT + 1], strict=True):
        if low < after:
            signature = tuple(any(a <= low <= b for a, b in ranges) for ranges in sets)
            found.setdefault(signature, []).append((low, after - 1))
    if len(found) > MAX_CHAR_CLASSES:
        raise TooComplexError
    return [regex.merged(ranges) for ranges in found.values()]


def _derivative(node: Regex, char: int, cache: dict[tuple[Regex, int], Regex]) -> Regex:
    """What has to follow the character."""
    key = node, char
    if key in cache:
        return cache[key]
    result: Regex
    match node:
        case Chars(ranges, _, _):
            result = EMPTY if any(low <= char <= high for low, high in ranges) else NOTHING
        case Cat(()):
            result = NOTHING
        case Cat((first, *rest)):
            result = regex.cat(_derivative(first, char, cache), *rest)
            if regex.is_nullable(first):
                result = regex.either(result, _derivative(regex.cat(*rest), char, cache))
        case Or(options):
            result = regex.either(*(_derivative(option, char, cache) for option in options))
        case And(items):
            result = regex.both(*(_derivative(item, char, cache) for item in items))
        case Not(item):
            result = regex.negated(_derivative(item, char, cache))
        case Repeat(item, low, high):
            rest_of = regex.repeat(item, max(low - 1, 0), None if high is None else high - 1)
            result = regex.cat(_derivative(item, char, cache), rest_of)
    cache[key] = result
    return result


def is_empty(node: Regex) -> bool:
    """Whether an expression matches no text at all. Raises TooComplexError."""
    return not _Automaton(node).finals


def matches(node: Regex, text: str) -> bool:
    """Whether an expression matches a text. Raises TooComplexError for one with Unicode classes."""
    _char_classes(node)
    cache: dict[tuple[Regex, int], Regex] = {}
    for char in text:
        node = _derivative(node, ord(char), cache)
    return regex.is_nullable(node)
