"""The grammar of one sequence, as the engine sees it, and that of an output that follows one from its first token."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)


class SequenceGrammar(Protocol):
    """Reads the tokens of a sequence as they grow."""

    @property
    def is_ready(self) -> bool:
        """Whether the next token can be picked; if not, `on_ready` of the compiler will be called."""

    @property
    def restricts(self) -> bool:
        """Whether there are tokens that may not come next. Only to be asked when it is ready."""

    @property
    def is_at_end(self) -> bool:
        """Whether the output is complete, so that nothing more can follow."""

    def write_allowed(self, mask: NDArray[np.uint8], held_back: Iterable[int] = ()) -> None:
        """Sets the bits of `mask` (lowest first) of the tokens that may come next; those in `held_back` only if there
        are no others. Sets none if the output has left the grammar, or if the grammar is too complex."""


def write_mask(matcher: LLMatcher, mask: NDArray[np.uint8], held_back: Iterable[int]) -> None:
    """`SequenceGrammar.write_allowed` for what `matcher` has read."""
    mask[:] = 0
    allowed = np.frombuffer(matcher.compute_bitmask(), np.uint8)[: len(mask)]
    if matcher.is_error():
        log.warning("a grammar cannot be followed further: %s", matcher.get_error())
        return
    mask[: len(allowed)] = allowed
    clear(mask, held_back)
    if not mask.any():
        mask[: len(allowed)] = allowed


def clear(mask: NDArray[np.uint8], token_ids: Iterable[int]) -> None:
    """Takes tokens out of a mask."""
    for token_id in token_ids:
        mask[token_id >> 3] &= ~np.uint8(1 << (token_id & 7))


class GrammarMatcher:
    """The grammar of an output from its first token to its last."""

    __slots__ = ("_compiled", "_is_waited_for", "_matcher", "_num_read", "_tokens")
    restricts = True

    def __init__(
        self, compiled: Future[LLMatcher | None], tokens: array[int], num_prompt: int, *, is_waited_for: bool
    ) -> None:
        self._is_waited_for = is_waited_for
        self._compiled = compiled
        self._matcher: LLMatcher | None = None
        self._tokens = tokens
        self._num_read = num_prompt

    @property
    def is_ready(self) -> bool:
        return self._is_waited_for or self._compiled.done()

    @property
    def is_at_end(self) -> bool:
        matcher = self._read()
        return matcher is not None and matcher.is_stopped() and not matcher.is_error()

    def write_allowed(self, mask: NDArray[np.uint8], held_back: Iterable[int] = ()) -> None:
        matcher = self._read()
        if matcher is None:
            mask[:] = 0
        else:
            write_mask(matcher, mask, held_back)

    def _read(self) -> LLMatcher | None:
        if self._matcher is None:
            prototype = self._compiled.result()
            if prototype is None:
                return None
            self._matcher = prototype.deep_copy()
        if self._num_read < len(self._tokens):
            self._matcher.consume_tokens(self._tokens[self._num_read :].tolist())
            self._num_read = len(self._tokens)
        return self._matcher
