"""What the scheduler has chosen to compute next: data that the composer turns into arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.workers.engine.plan.step_plan import StateCopy
from slipstream.workers.engine.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """`num_tokens` tokens of a sequence from `sequence.num_computed` on. `begins`: its first chunk since it was
    admitted. `samples`: they reach the last token known, so the next one can be sampled."""

    sequence: Sequence
    num_tokens: int
    begins: bool
    samples: bool


@dataclass(slots=True)
class ScheduledStep:
    """The choice for one step. Each decoding sequence computes its last token and samples the next one."""

    decoding: list[Sequence]
    chunks: list[ScheduledChunk] = field(default_factory=list)
    num_chunk_tokens: int = 0
    state_copies: tuple[StateCopy, ...] = ()

    def add_chunk(self, sequence: Sequence, budget: int, page_tokens: int, *, begins: bool) -> int:
        """The next chunk of a sequence, of `budget` tokens at most; returns its length. A chunk that is not the last
        ends with a page, so that pages are complete (and sent) early, unless that would leave more than half the budget
        unused. It ends where the state is to be kept for the prefix cache."""
        if sequence.stops:
            budget = min(budget, sequence.stops[-1] - sequence.num_computed)
        num_tokens = sequence.num_uncomputed
        if num_tokens > budget:
            over = (sequence.num_computed + budget) % page_tokens
            num_tokens = budget - over if 2 * over <= budget else budget
        samples = num_tokens == sequence.num_uncomputed
        self.chunks.append(ScheduledChunk(sequence, num_tokens, begins, samples))
        self.num_chunk_tokens += num_tokens
        return num_tokens

    def __bool__(self) -> bool:
        return bool(self.decoding or self.chunks)
