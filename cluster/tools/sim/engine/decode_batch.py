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

    def join(self, job: SimAttempt) -> None:
        job.state = AttemptState.DECODING
        self._joining.append(job)

    def drop(self, job: SimAttempt) -> bool:
        """It decodes no longer. False: it had not begun."""
        if job not in self._members:
            return False
        del self._members[job]
        self._leaving.append(job)
        return True

    def regroup(self) -> None:
        """Between two steps: who was dropped leaves, who is ready comes in."""
        self._regroup_leaving()
        for job in self._joining:
            if job.state is not AttemptState.DECODING:
                continue
            self._num_joined += 1
            job.joined_step = self.steps
            job.out_base = job.told
            job.num_base = job.num_known + job.told - job.num_given
            heapq.heappush(self._ending, (self.steps + job.stop_at - job.told, self._num_joined, job))
            self._members[job] = None
            self.context += job.num_base
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
            step, _, job = heapq.heappop(ending)
            if job not in self._members or job.joined_step + job.stop_at - job.out_base != step:
                continue  # it is gone, or has joined anew
            del self._members[job]
            self._left(job)
            ended.append(job)
        return ended

    def take(self, job: SimAttempt) -> bool:
        """Takes one out between two steps. False: it had not begun, and will not."""
        if job not in self._members:
            return False
        del self._members[job]
        self._left(job)
        return True

    def pop_latest(self) -> SimAttempt:
        """Takes out who joined last."""
        job, _ = self._members.popitem()
        self._left(job)
        return job

    def output_of(self, job: SimAttempt) -> int:
        """How long its answer is by now."""
        return job.out_base + self.steps - job.joined_step

    def _regroup_leaving(self) -> None:
        for job in self._leaving:
            self._left(job)
        self._leaving.clear()

    def _left(self, job: SimAttempt) -> None:
        num_here = self.steps - job.joined_step
        self.context -= job.num_base + num_here
        self.grown -= num_here
