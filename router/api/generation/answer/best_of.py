"""The best of several outputs of a prompt, by the mean log-probability of their tokens: OpenAI's `best_of`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.router.api.generation.answer.answer_format import WholeChoice
from slipstream.router.api.generation.answer.output import Out
from slipstream.router.protocol.generation import Delta


@dataclass(slots=True)
class MeanLogprob:
    """The mean over the tokens of one output, that which ended it included."""

    total: float = 0.0
    num_tokens: int = 0

    def add(self, delta: Delta) -> None:
        for _, logprob in delta:
            self.total += -math.inf if logprob is None else logprob.logprob
            self.num_tokens += 1

    @property
    def mean(self) -> float:
        return self.total / self.num_tokens if self.num_tokens else -math.inf


def best_choices(
    choices: Sequence[WholeChoice[Out]], scores: Sequence[float], choices_per_prompt: int, num_best: int
) -> list[WholeChoice[Out]]:
    """The `num_best` best choices of each prompt, best first, numbered anew; of equals, the first."""
    best: list[int] = []
    for first in range(0, len(choices), choices_per_prompt):
        best += sorted(range(first, first + choices_per_prompt), key=lambda at: -scores[at])[:num_best]
    return [replace(choices[at], index=index) for index, at in enumerate(best)]
