"""Decode steps one after another, solved for instead of made.

All that decode advance together, so `n` sequences with `c` tokens of context take `k` steps in

    k (step + n seq + c token) + token n k (k - 1) / 2  seconds.

A step with prompts in it is a run of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SLACK_S = 1e-9  # the end of a step, to the precision of sums of seconds


@dataclass(slots=True)
class StepRun:
    """`first_s` is what its first step takes, `growth_s` how much longer each step is than the one before. `num_steps`
    may be cut short while it runs, but not below `step_under_way`; `late_s` is by how much its last step ends later
    than that says, because somebody has taken the cores from it."""

    begun_s: float
    num_steps: int
    num_seqs: int
    first_s: float
    growth_s: float
    late_s: float = 0.0

    @property
    def end_s(self) -> float:
        num = self.num_steps  # as `end_of` says, which this would call for every event
        return self.begun_s + (num * self.first_s + self.growth_s * 0.5 * num * (num - 1)) + self.late_s

    def end_of(self, num_steps: int) -> float:
        """When so many of its steps have ended."""
        end_s = self.begun_s + self.seconds(num_steps)
        return end_s + self.late_s if num_steps == self.num_steps else end_s

    def seconds(self, num_steps: int) -> float:
        return num_steps * self.first_s + self.growth_s * 0.5 * num_steps * (num_steps - 1)

    def steps_within(self, seconds: float) -> int:
        """Whole steps that fit into the time."""
        first_s, growth_s = self.first_s, self.growth_s
        if growth_s <= 1e-15 * first_s:
            return int(seconds / first_s + SLACK_S)
        half = first_s - 0.5 * growth_s
        return int((math.sqrt(half * half + 2.0 * growth_s * max(seconds, 0.0)) - half) / growth_s + SLACK_S)

    def step_under_way(self, now_s: float) -> int:
        """How many steps there have been when the one that is under way has ended."""
        elapsed = now_s - self.begun_s
        num_done = min(self.steps_within(elapsed), self.num_steps)
        at_end = num_done and self.seconds(num_done) >= elapsed - SLACK_S
        return num_done if at_end else min(num_done + 1, self.num_steps)
