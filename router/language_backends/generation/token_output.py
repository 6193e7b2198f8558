"""An output of tokens that are made no text: it ends with certain sequences of them."""

from __future__ import annotations

from slipstream.router.api.generation.answer.output_tokens import OutputTokens
from slipstream.router.language_backends.generation.tensor_generation import TokenWords
from slipstream.router.protocol.generation import Delta


class TokenOutput(OutputTokens):
    """The sequence that ends it is part of it."""

    __slots__ = ("_longest", "_stop_words", "_tail")

    def __init__(self, stop_words: TokenWords) -> None:
        super().__init__()
        self._stop_words = stop_words
        self._longest = max(map(len, stop_words), default=0)
        self._tail: list[int] = []

    def add(self, delta: Delta, hides_last: bool = False) -> str:
        num_taken = self._num_to_stop(delta[:-1] if hides_last else delta) if self._stop_words else None
        if num_taken is None:
            return super().add(delta, hides_last)
        self.stopped = True
        return super().add(delta[:num_taken])

    def _num_to_stop(self, delta: Delta) -> int | None:
        """How many of the tokens belong to the output; None if it does not end with one of them."""
        tail = self._tail
        for index, (token_id, _) in enumerate(delta):
            tail.append(token_id)
            del tail[: -self._longest]
            if any(tuple(tail[-len(word) :]) == word for word in self._stop_words):
                return index + 1
        return None
