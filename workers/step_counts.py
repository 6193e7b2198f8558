"""Counts how large the steps of an engine are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from slipstream.router.messages import STEP_SEQUENCES_LE, STEP_TOKENS_LE

# Upper ends of the buckets. Those of tokens are vLLM's, for the metric that the router makes of them.
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class StepCounts:
    """Totals since the engine was created."""

    __slots__ = ("_by_sequences", "_by_tokens", "num_sequences", "num_steps", "num_tokens")

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.num_sequences = 0
        self._by_tokens = [0] * (len(TOKENS) + 1)
        self._by_sequences = [0] * (len(SEQUENCES) + 1)

    def add(self, num_tokens: int, num_sequences: int) -> None:
        """A step computed so many tokens, of so many sequences."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.num_sequences += num_sequences
        self._by_tokens[bisect_left(TOKENS, num_tokens)] += 1
        self._by_sequences[bisect_left(SEQUENCES, num_sequences)] += 1

    def by_size(self) -> Iterator[tuple[str, int]]:
        """How many steps there were in each bucket that is not empty. The names are those of `Stats.counters`."""
        for name, bounds, counts in (
            (STEP_TOKENS_LE, TOKENS, self._by_tokens),
            (STEP_SEQUENCES_LE, SEQUENCES, self._by_sequences),
        ):
            for bound, count in zip((*bounds, "inf"), counts, strict=True):
                if count:
                    yield f"{name}{bound}", count
