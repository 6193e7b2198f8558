"""Finds the triggers of an output's phases in its tokens, without a grammar and without llguidance.

An output is a sequence of symbols: the bytes of its text, and the special tokens that its format shows. A place is the
number of a phase and, if that is free, the beginnings of triggers that the output ends in: `(trigger, number of
symbols)` each. Nearly always there is none, and then a token that has no trigger's first symbol in it changes nothing:
reading an output costs a look into a set for each token.

In a free phase each token may come, with one exception. A token can go beyond the end of a trigger (`>` and a line
break in one, where `<tool_call` was written), into what the grammar of the next phase has to decide on. These tokens
are `doubtful`, and only where there are some, the grammar is asked, for them alone. In most vocabularies there are
none, because the trigger is one token.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.router.protocol.phased_grammar import PhasedGrammar, Trigger
from slipstream.workers.engine.structured_output.token_bytes import TokenBytes

SPACES = b" \t\n\r"
WHITE_SPACE = frozenset(SPACES)
FIRST_SHOWN = 256  # the symbol of the special token 0; smaller ones are bytes
Symbols = tuple[int, ...]
Begun = tuple[tuple[int, int], ...]
NOTHING: Begun = ()


class Place(NamedTuple):
    """Where an output stands. `read` is what the grammar of its phase has to read first, if it has just begun it;
    `num_beyond` symbols of that are beyond the trigger."""

    phase: int
    begun: Begun = NOTHING
    read: Symbols = ()
    num_beyond: int = 0


class Doubtful(NamedTuple):
    """Tokens that go beyond a trigger's end. They may come if the grammar of phase `to` allows them after it has
    `read`; None: they may not."""

    token_ids: tuple[int, ...]
    to: int
    read: Symbols | None


class PhaseShape(NamedTuple):
    """What the scanner has to know of a phase, which is the same for many requests."""

    triggers: tuple[Trigger, ...]
    is_free: bool


class OutputShape(NamedTuple):
    """The phases of an output without their grammars."""

    phases: tuple[PhaseShape, ...]
    shown_ids: tuple[int, ...]

    @staticmethod
    def of(grammar: PhasedGrammar) -> OutputShape:
        phases = tuple(PhaseShape(phase.triggers, phase.grammar is None) for phase in grammar.phases)
        return OutputShape(phases, grammar.shown_ids)


class TriggerScanner:
    """For outputs of one vocabulary with phases of the same shape. Not bound to a sequence."""

    def __init__(self, shape: OutputShape, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._shown = frozenset(shape.shown_ids)
        self._phases = shape.phases
        self._markers = [[_symbols(trigger) for trigger in phase.triggers] for phase in shape.phases]
        self._initial = [
            tuple([(number, 0) for number, trigger in enumerate(phase.triggers) if trigger.at_start])
            for phase in shape.phases
        ]
        self._relevant = [self._relevant_ids(phase) for phase in range(len(shape.phases))]
        self._doubtful: dict[tuple[int, Begun], tuple[Doubtful, ...]] = {}
        for number, phase in enumerate(shape.phases):
            if phase.is_free:
                self._prepare(number)

    def begin(self, phase: int) -> Place:
        """Where an output stands at the beginning of a phase."""
        return Place(phase, self._initial[phase] if self._phases[phase].is_free else NOTHING)

    def is_free(self, phase: int) -> bool:
        """Whether the phase has no grammar."""
        return self._phases[phase].is_free

    def after(self, place: Place, token_id: int) -> Place | None:
        """Where an output goes on from a free phase with a token; None: where it was."""
        if not place.begun and token_id not in self._relevant[place.phase]:
            return None
        return self._after(place.phase, place.begun, self.symbols_of(token_id))

    def symbols_of(self, token_id: int) -> Symbols:
        """What a token adds to the output."""
        return (FIRST_SHOWN + token_id,) if token_id in self._shown else tuple(self._tokens.of[token_id])

    def started(self, phase: int, symbols: Symbols) -> tuple[int | None, bool]:
        """For the first symbols of a phase with a grammar: the phase that they lead to as one of its triggers, and
        whether they may become one."""
        for trigger, marker in zip(self._phases[phase].triggers, self._markers[phase], strict=True):
            if marker == symbols:
                return trigger.to, False
        return None, any(marker[: len(symbols)] == symbols for marker in self._markers[phase])

    def doubtful(self, place: Place) -> tuple[Doubtful, ...]:
        """The tokens on which a grammar has to decide here; in a free phase only."""
        key = place.phase, place.begun
        found = self._doubtful.get(key)
        if found is None:
            found = self._doubtful[key] = self._find_doubtful(*key)
        return found

    def _after(self, phase: int, begun: Begun, symbols: Symbols) -> Place:
        for at, symbol in enumerate(symbols, 1):
            begun, met = self._step(phase, begun, symbol)
            if met is not None:
                read = self._markers[phase][met] + symbols[at:]
                phase = self._phases[phase].triggers[met].to
                if not self._phases[phase].is_free:
                    return Place(phase, NOTHING, read, len(symbols) - at)
                begun = self._initial[phase]
        return Place(phase, begun)

    def _step(self, phase: int, begun: Begun, symbol: int) -> tuple[Begun, int | None]:
        """What has begun after a symbol, and the trigger that it completes, if any."""
        triggers, markers = self._phases[phase].triggers, self._markers[phase]
        after: list[tuple[int, int]] = []
        for number, length in begun:
            marker = markers[number]
            if symbol in WHITE_SPACE and triggers[number].at_start:
                after.append((number, length))
            elif marker[length] == symbol:
                if length + 1 == len(marker):
                    return NOTHING, number
                after.append((number, length + 1))
        for number, marker in enumerate(markers):
            if marker[0] == symbol and not triggers[number].at_start:
                if len(marker) == 1:
                    return NOTHING, number
                after.append((number, 1))
        return tuple(after), None

    def _relevant_ids(self, phase: int) -> frozenset[int]:
        """The tokens that can change the place of an output that has begun no trigger."""
        found: set[int] = set()
        for trigger, marker in zip(self._phases[phase].triggers, self._markers[phase], strict=True):
            if not trigger.at_start:
                found.update(self._with_symbol(marker[0]))
        return frozenset(found)

    def _with_symbol(self, symbol: int) -> list[int]:
        return self._tokens.with_byte(symbol) if symbol < FIRST_SHOWN else [symbol - FIRST_SHOWN]

    def _prepare(self, phase: int) -> None:
        """Looks for doubtful tokens at the places that outputs come to, not when the first of them does. Triggers at
        the start may be many, one for each tool, and are looked at when they are met."""
        self.doubtful(Place(phase))
        self.doubtful(Place(phase, self._initial[phase]))
        for trigger, marker in zip(self._phases[phase].triggers, self._markers[phase], strict=True):
            begun = NOTHING
            for symbol in () if trigger.at_start else marker[:-1]:
                begun, met = self._step(phase, begun, symbol)
                if met is not None:
                    break
                self.doubtful(Place(phase, begun))

    def _find_doubtful(self, phase: int, begun: Begun) -> tuple[Doubtful, ...]:
        groups: dict[tuple[int, Symbols | None], list[int]] = {}
        for token_id in sorted(self._candidates(phase, begun)):
            symbols = self.symbols_of(token_id)
            place = self._after(phase, begun, symbols)
            if place.num_beyond:
                key = place.phase, self._read_before(phase, begun, place, symbols)
                groups.setdefault(key, []).append(token_id)
        return tuple(Doubtful(tuple(token_ids), to, read) for (to, read), token_ids in groups.items())

    def _read_before(self, phase: int, begun: Begun, place: Place, symbols: Symbols) -> Symbols | None:
        """What the next phase's grammar has read before a doubtful token that leads to `place`; None: the trigger
        begins in the middle of the token, or in a phase between the two."""
        for number, length in begun:
            trigger, marker = self._phases[phase].triggers[number], self._markers[phase][number]
            leads_there = trigger.to == place.phase and place.read[: len(marker)] == marker
            if leads_there and _begins(symbols, marker[length:], trigger.at_start):
                return marker[:length]
        return () if place.read == symbols else None

    def _candidates(self, phase: int, begun: Begun) -> set[int]:
        """Tokens that may complete a trigger before their end, and others. A shown token is one symbol, and cannot."""
        of, found = self._tokens.of, set[int]()
        triggers, markers = self._phases[phase].triggers, self._markers[phase]
        for marker, trigger in zip(markers, triggers, strict=True):
            if not trigger.at_start and max(marker) < FIRST_SHOWN:
                text = bytes(marker)
                found.update(token_id for token_id in self._tokens.with_byte(marker[0]) if text in of[token_id])
        # There may be a trigger for each of a thousand tools: all their rests are looked for at once.
        rests: dict[bool, set[bytes]] = {False: set(), True: set()}
        for number, length in begun:
            rest = markers[number][length:]
            if max(rest) < FIRST_SHOWN:
                rests[triggers[number].at_start].add(bytes(rest))
        for at_start, wanted in rests.items():
            lengths = {len(rest) for rest in wanted}
            for token_id in {
                token for first in {rest[0] for rest in wanted} for token in self._tokens.with_byte(first)
            }:
                text = of[token_id].translate(None, SPACES) if at_start else of[token_id]
                if any(text[:length] in wanted for length in lengths if length <= len(text)):
                    found.add(token_id)
        return found - self._shown


def _begins(symbols: Symbols, marker: Symbols, at_start: bool) -> bool:
    if at_start:
        symbols = tuple([symbol for symbol in symbols if symbol not in WHITE_SPACE])
    return symbols[: len(marker)] == marker


def _symbols(trigger: Trigger) -> Symbols:
    """A marker's symbols. Where white space makes no difference, it has none."""
    found: list[int] = []
    for part in trigger.marker:
        found += [FIRST_SHOWN + part] if isinstance(part, int) else part.encode()
    return tuple([symbol for symbol in found if not trigger.at_start or symbol not in WHITE_SPACE])
