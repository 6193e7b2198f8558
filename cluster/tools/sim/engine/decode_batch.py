"""The sequences of a worker that decode, which all advance by a token a step."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, SimAttempt


class DecodeBatch:
    """What grows with each step is counted once for all of them, so a step costs nothing per sequence. Who joins or is
    dropped does so between two steps: `regroup`."""

    __slots__ = ("_ending", "_joining", "_leaving", "_members", "_num_joined", "context", "grown", "steps")

    def __init__(self) -> None:
        self.steps = 0  # that the worker has made
        self.context = 0  # tokens that a step attends to
        self.grown = 0  # those of them that came while their sequences decoded here
        self._ending: list[tuple[int, int, SimAttempt]] = []  # by the step at which they end
        self._members: dict[SimAttempt, None] = {}  # in the order of their joining
        self._joining: list[SimAttempt] = []
        self._leaving: list[SimAttempt] = []
        self._num_joined = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[SimAttempt]:
        return iter(self._members)

    @property
    def is_changing(self) -> bool:
        """Somebody joins or leaves with the next `regroup`."""
        return bool(self._joining or self._leaving)

    @property
    def steps_to_end(self) -> int:
        """So many until the next answer ends. There must be one."""
        ending = self._ending
        while ending[0][2].state is not AttemptState.DECODING:
            heapq.heappop(ending)
        return ending[0][0] - self.steps

    def join(self, attempt: SimAttempt) -> None:
        attempt.state = AttemptState.DECODING
        self._joining.append(attempt)

    def drop(self, attempt: SimAttempt) -> bool:
        """It decodes no longer. False: it had not begun."""
        if attempt not in self._members:
            return False
        del self._members[attempt]
        self._leaving.append(attempt)
        return True

    def regroup(self) -> None:
        """Between two steps: who was dropped leaves, who is ready comes in."""
        self._regroup_leaving()
        for attempt in self._joining:
            if attempt.state is not AttemptState.DECODING:
                continue
            self._num_joined += 1
            attempt.joined_step = self.steps
            attempt.out_base = attempt.num_reported
            attempt.num_base = attempt.num_known + attempt.num_reported - attempt.num_given
            heapq.heappush(
                self._ending, (self.steps + attempt.stop_at - attempt.num_reported, self._num_joined, attempt)
            )
            self._members[attempt] = None
            self.context += attempt.num_base
        self._joining.clear()
        if not self._members:
            self.context = self.grown = 0

    def advance(self, num_steps: int, num_seqs: int) -> list[SimAttempt]:
        """So many steps of the sequences that were in them. Returns those whose answers ended, who are out of it."""
        self.steps += num_steps
        self.context += num_seqs * num_steps
        self.grown += num_seqs * num_steps
        self._regroup_leaving()
        ending, ended = self._ending, []
        while ending and ending[0][0] <= self.steps:
            step, _, attempt = heapq.heappop(ending)
            if attempt not in self._members or attempt.joined_step + attempt.stop_at - attempt.out_base != step:
                continue  # it is gone, or has joined anew
            del self._members[attempt]
            self._left(attempt)
            ended.append(attempt)
        return ended

    def take(self, attempt: SimAttempt) -> bool:
        """Takes one out between two steps. False: it had not begun, and will not."""
        if attempt not in self._members:
            return False
        del self._members[attempt]
        self._left(attempt)
        return True

    def pop_latest(self) -> SimAttempt:
        """Takes out who joined last."""
        attempt, _ = self._members.popitem()
        self._left(attempt)
        return attempt

    def output_of(self, attempt: SimAttempt) -> int:
        """How long its answer is by now."""
        return attempt.out_base + self.steps - attempt.joined_step

    def _regroup_leaving(self) -> None:
        for attempt in self._leaving:
            self._left(attempt)
        self._leaving.clear()

    def _left(self, attempt: SimAttempt) -> None:
        num_here = self.steps - attempt.joined_step
        self.context -= attempt.num_base + num_here
        self.grown -= num_here
