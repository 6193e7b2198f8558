"""Tokens that a sequence may not have next: all but its `allowed_token_ids`, and those that would complete one of its
`bad_words`.

A bad word of several tokens is avoided at its last one: that is banned where the output so far ends in the others, as
in vLLM. The prompt does not count (it does in transformers' `NoBadWordsLogitsProcessor`): what a client has written is
not the model's output.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from slipstream.router.protocol.messages import SamplingParams


class TokenBans:
    """The bans of one sequence, whose `tokens` it reads as they grow."""

    __slots__ = ("_always", "_num_prompt", "_tokens", "_words")

    def __init__(self, params: SamplingParams, tokens: array[int], num_prompt: int, vocab_size: int) -> None:
        self._tokens = tokens
        self._num_prompt = num_prompt
        if params.allowed_token_ids:
            self._always = np.ones(vocab_size, np.bool_)
            self._always[np.frombuffer(params.allowed_token_ids, np.int32)] = False
        else:
            self._always = np.zeros(vocab_size, np.bool_)
        words = [array("i", word) for word in params.bad_words]
        self._always[[word[0] for word in words if len(word) == 1]] = True
        self._words = [(word[:-1], word[-1]) for word in words if len(word) > 1]

    def write(self, banned: NDArray[np.bool_]) -> None:
        """Sets which tokens are banned now, `[vocab]`."""
        banned[:] = self._always
        tokens = self._tokens
        num_output = len(tokens) - self._num_prompt
        for rest, last in self._words:
            if len(rest) <= num_output and tokens[-len(rest) :] == rest:
                banned[last] = True
