"""Counts how large the steps of an engine are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from slipstream.router.protocol.messages import STEP_SEQUENCES, STEP_TOKENS


class StepCounts:
    """Totals since the engine was created."""

    __slots__ = ("_by_sequences", "_by_tokens", "num_sequences", "num_steps", "num_tokens")

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.num_sequences = 0
        self._by_tokens = [0] * (len(STEP_TOKENS.bounds) + 1)
        self._by_sequences = [0] * (len(STEP_SEQUENCES.bounds) + 1)

    def add(self, num_tokens: int, num_sequences: int) -> None:
        """A step computed so many tokens, of so many sequences."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.num_sequences += num_sequences
        self._by_tokens[bisect_left(STEP_TOKENS.bounds, num_tokens)] += 1
        self._by_sequences[bisect_left(STEP_SEQUENCES.bounds, num_sequences)] += 1

    def by_size(self) -> Iterator[tuple[str, int]]:
        """How many steps there were in each bucket that is not empty. The names are those of `Stats.counters`."""
        for buckets, counts in ((STEP_TOKENS, self._by_tokens), (STEP_SEQUENCES, self._by_sequences)):
            for bound, count in zip((*buckets.bounds, "inf"), counts, strict=True):
                if count:
                    yield f"{buckets.prefix}{bound}", count
