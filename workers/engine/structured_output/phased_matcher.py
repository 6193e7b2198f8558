"""The grammar of a sequence whose output goes through phases (`protocol.phased_grammar`).

While a phase is free, nothing is computed for the sequence: it waits for no grammar, and its row looks to the sampler
as if it had none. Where a trigger has come, the grammar of the next phase begins with it.

An output that does not fit its grammar, because a worker without that has written a part of it, goes on freely: it is
worth more than an error. Where a grammar holds from the first token, nothing may follow, and it ends in an error: an
answer that only begins as a schema asks for is worth nothing.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.router.protocol.phased_grammar import PhasedGrammar
from slipstream.workers.engine.structured_output.grammar_matcher import clear, write_mask
from slipstream.workers.engine.structured_output.trigger_scanner import FIRST_SHOWN, Place, Symbols, TriggerScanner

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)


class PhasedMatcher:
    """Reads the output of one sequence in its `tokens` as they grow. `scanner` becomes None if the tokenizer cannot be
    read. `compiled` are the grammars of phases by number; `tokenize` turns bytes into tokens."""

    __slots__ = (
        "_compiled",
        "_eos_ids",
        "_grammar",
        "_has_left",
        "_is_bound",
        "_is_free",
        "_is_waited_for",
        "_matcher",
        "_num_followed",
        "_num_scanned",
        "_place",
        "_restricts",
        "_scanner",
        "_start",
        "_tokenize",
        "_tokens",
    )

    def __init__(
        self,
        grammar: PhasedGrammar,
        scanner: Future[TriggerScanner | None],
        compiled: Mapping[int, Future[LLMatcher | None]],
        tokenize: Callable[[bytes], list[int]],
        eos_ids: Sequence[int],
        tokens: array[int],
        num_prompt: int,
        *,
        is_waited_for: bool,
    ) -> None:
        self._grammar = grammar
        self._scanner = scanner
        self._compiled = compiled
        self._tokenize = tokenize
        self._eos_ids = eos_ids
        self._tokens = tokens
        self._is_waited_for = is_waited_for
        self._num_scanned = num_prompt  # tokens in which triggers were looked for
        self._num_followed = num_prompt  # tokens that `_matcher` has read, or need not
        self._place: Place | None = None  # None: no scanner yet
        self._is_free = False  # whether the phase has no grammar
        self._restricts = True
        self._start: Symbols | None = ()  # of a phase with a grammar, as long as that may become one of its triggers
        self._matcher: LLMatcher | None = None
        self._has_left = False
        self._is_bound = grammar.phases[grammar.begin].grammar is not None

    @property
    def is_ready(self) -> bool:
        if self._is_waited_for:
            return True
        if not self._scanner.done():
            return False
        scanner = self._scan()
        if scanner is None or not self._restricts:
            return True
        return all(self._compiled[phase].done() for phase in self._needed(scanner))

    @property
    def restricts(self) -> bool:
        self._scan()
        return self._restricts

    @property
    def is_at_end(self) -> bool:
        if self._scan() is None or self._is_free or self._has_left or not self.is_ready:
            return False
        matcher = self._follow()
        return matcher is not None and matcher.is_stopped() and not matcher.is_error()

    def write_allowed(self, mask: NDArray[np.uint8], held_back: Iterable[int] = ()) -> None:
        scanner = self._scan()
        mask[:] = 0
        if scanner is None:
            return
        if not self._is_free:
            matcher = self._follow()
            if not self._has_left:
                if matcher is not None:
                    write_mask(matcher, mask, held_back)
                return
            if self._is_bound:
                return
        self._write_free(scanner, mask)
        clear(mask, held_back)
        if not mask.any():
            self._write_free(scanner, mask)

    def _write_free(self, scanner: TriggerScanner, mask: NDArray[np.uint8]) -> None:
        """All tokens may come, but those on which a later grammar decides, and some ends."""
        mask[:] = 0xFF
        if self._has_left:
            return
        assert self._place is not None
        if not self._grammar.phases[self._place.phase].may_end:
            clear(mask, self._eos_ids)
        for token_ids, to, read in scanner.doubtful(self._place):
            allowed = np.zeros_like(mask)
            matcher = None if read is None else self._opened(to, read)
            if matcher is not None:
                write_mask(matcher, allowed, ())
            clear(mask, [token_id for token_id in token_ids if not allowed[token_id >> 3] >> (token_id & 7) & 1])

    def _needed(self, scanner: TriggerScanner) -> set[int]:
        """The phases whose grammar is needed for the next token."""
        assert self._place is not None
        if not self._is_free:
            return {self._place.phase}
        return {one.to for one in scanner.doubtful(self._place) if one.read is not None}

    def _scan(self) -> TriggerScanner | None:
        """Looks for triggers in the tokens that are new."""
        scanner = self._scanner.result()
        if scanner is None:
            return None
        if self._place is None:
            self._move(scanner, scanner.begin(self._grammar.begin))
        tokens = self._tokens
        while self._num_scanned < len(tokens) and (self._is_free or self._start is not None):
            token_id = tokens[self._num_scanned]
            self._num_scanned += 1
            assert self._place is not None
            if not self._is_free:
                self._look_at_start(scanner, self._place.phase, token_id)
                continue
            place = scanner.after(self._place, token_id)
            if place is not None:
                self._move(scanner, place)
        return scanner

    def _look_at_start(self, scanner: TriggerScanner, phase: int, token_id: int) -> None:
        """Whether the phase, whose grammar has read nothing yet, was only its trigger."""
        assert self._start is not None
        self._start += scanner.symbols_of(token_id)
        to, may_become_one = scanner.started(phase, self._start)
        if to is not None:
            self._move(scanner, scanner.begin(to))
        elif not may_become_one:
            self._start = None

    def _move(self, scanner: TriggerScanner, place: Place) -> None:
        self._place, self._matcher = place, None
        self._is_free = scanner.is_free(place.phase)
        self._num_followed = self._num_scanned
        self._start = None if place.read else ()
        self._restricts = (
            not self._is_free or not self._grammar.phases[place.phase].may_end or bool(scanner.doubtful(place))
        )

    def _follow(self) -> LLMatcher | None:
        """The grammar of the phase, with all tokens read."""
        if self._matcher is None:
            assert self._place is not None
            self._matcher = self._opened(self._place.phase, self._place.read)
            if self._matcher is None:
                return None
        if self._num_followed < len(self._tokens):
            self._matcher.consume_tokens(self._tokens[self._num_followed :].tolist())
            self._num_followed = len(self._tokens)
        if self._matcher.is_error() and not self._has_left:
            log.warning("an output has left its grammar: %s", self._matcher.get_error())
            self._has_left, self._restricts = True, self._is_bound
        return self._matcher

    def _opened(self, phase: int, read: Symbols) -> LLMatcher | None:
        """The grammar of a phase that has read the trigger, or a part of it."""
        prototype = self._compiled[phase].result()
        if prototype is None:
            return None
        matcher = prototype.deep_copy()
        for is_text, group in groupby(read, lambda symbol: symbol < FIRST_SHOWN):
            symbols = list(group)
            token_ids = self._tokenize(bytes(symbols)) if is_text else [symbol - FIRST_SHOWN for symbol in symbols]
            matcher.consume_tokens(token_ids)
        return matcher
