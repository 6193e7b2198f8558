"""The prompts that a simulated worker is to compute, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, SimAttempt


class PromptQueue:
    """`chunks` are what the step under way computes of them: `fill` takes them in, `advance` counts them."""

    __slots__ = ("_queue", "chunk_tokens", "chunks", "num_tokens")

    def __init__(self) -> None:
        self._queue: deque[SimAttempt] = deque()
        self.num_tokens = 0  # not computed yet, of all of them
        self.chunks: list[tuple[SimAttempt, int]] = []
        self.chunk_tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, attempt: SimAttempt, num_cached: int, *, is_first: bool = False) -> None:
        """All but `num_cached` of its tokens are to be computed."""
        attempt.state = AttemptState.QUEUED
        attempt.num_uncomputed = attempt.num_known - num_cached
        self.num_tokens += attempt.num_uncomputed
        if is_first:
            self._queue.appendleft(attempt)
        else:
            self._queue.append(attempt)

    def drop(self, attempt: SimAttempt) -> None:
        self.num_tokens -= attempt.num_uncomputed
        self._queue.remove(attempt)

    def found(self, attempt: SimAttempt, num_cached: int) -> None:
        """Before its first chunk: more of it is cached than was known."""
        self.num_tokens -= attempt.num_uncomputed
        attempt.num_uncomputed = attempt.num_known - num_cached
        self.num_tokens += attempt.num_uncomputed

    def fill(self, budget: int, begin: Callable[[SimAttempt], bool]) -> float:
        """Takes prompts into the next step. Of whom the first chunk would come `begin` says whether there is room.
        Returns the pairs of a token of them and one before it."""
        self.chunks, self.chunk_tokens = [], 0
        pairs = 0.0
        for attempt in self._queue:
            if budget <= 0:
                break
            if not attempt.has_begun and not begin(attempt):
                break
            take = min(budget, attempt.num_uncomputed)
            pairs += take * (attempt.num_known - attempt.num_uncomputed + 0.5 * take)
            self.chunks.append((attempt, take))
            self.chunk_tokens += take
            budget -= take
        return pairs

    def advance(self) -> list[SimAttempt]:
        """The step is over. Returns those of which it has computed something, without those that were dropped; who is
        whole is out of the queue."""
        advanced = []
        for attempt, take in self.chunks:
            if attempt.state is not AttemptState.QUEUED:
                continue
            attempt.num_uncomputed -= take
            self.num_tokens -= take
            if attempt.num_uncomputed == 0:
                self._queue.popleft()
            advanced.append(attempt)
        self.chunks = []
        return advanced
