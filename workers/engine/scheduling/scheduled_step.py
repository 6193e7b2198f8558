"""What the scheduler has chosen to compute next: data that `BatchBuilder` turns into arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.workers.engine.plan.step_plan import StateCopy
from slipstream.workers.engine.scheduling.sequence import Sequence

NOTHING = range(0)


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """`num_tokens` tokens of a sequence from `sequence.num_computed` on. `begins`: its first chunk since it was
    admitted. `samples`: they reach the last token known, so the next one can be sampled. `scores`: the positions among
    them whose scores say how likely the next token of the prompt is, where that is wanted."""

    sequence: Sequence
    num_tokens: int
    begins: bool
    samples: bool
    scores: range = NOTHING


@dataclass(slots=True)
class ScheduledStep:
    """The choice for one step. Each decoding sequence computes its last token and samples the next one. It has scores
    of at most `max_scored_tokens` prompt tokens, or one of each prompt if that is more; None: of all."""

    decoding: list[Sequence]
    chunks: list[ScheduledChunk] = field(default_factory=list)
    num_chunk_tokens: int = 0
    state_copies: tuple[StateCopy, ...] = ()
    max_scored_tokens: int | None = None
    num_scored_tokens: int = 0

    def add_chunk(self, sequence: Sequence, budget: int, page_tokens: int, *, begins: bool) -> int:
        """The next chunk of a sequence, of `budget` tokens at most; returns its length. A chunk that is not the last
        ends with a page, so that pages are complete (and sent) early, unless that would leave more than half the budget
        unused. It ends where the state is to be kept for the prefix cache."""
        if sequence.stops:
            budget = min(budget, sequence.stops[-1] - sequence.num_computed)
        if self.max_scored_tokens is not None and not sequence.is_scored:
            budget = min(budget, max(1, self.max_scored_tokens - self.num_scored_tokens))
        num_tokens = sequence.num_uncomputed
        if num_tokens > budget:
            over = (sequence.num_computed + budget) % page_tokens
            num_tokens = budget - over if 2 * over <= budget else budget
        samples = num_tokens == sequence.num_uncomputed
        scores = NOTHING
        if not sequence.is_scored:
            end = sequence.num_computed + num_tokens
            scores = range(max(sequence.num_computed, sequence.num_scored), min(end, sequence.num_to_score))
            self.num_scored_tokens += len(scores)
        self.chunks.append(ScheduledChunk(sequence, num_tokens, begins, samples, scores))
        self.num_chunk_tokens += num_tokens
        return num_tokens

    def __bool__(self) -> bool:
        return bool(self.decoding or self.chunks)
