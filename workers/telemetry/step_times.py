"""Selects the steps whose times are sent to the router: a few of each kind per second, from the first on.

Steps that only decode are short, and a single one says little about their mean: under a CPU quota, most take no time at
all and a few take a whole period of the quota. So all such steps since the last sample are sent as one sum. Steps with
prompts are long, and single ones are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.router.protocol.messages import StepTime, StepTimes

SAMPLE_EVERY_S = 0.1  # for steps that only decode and for steps with prompts, separately
TELL_EVERY_S = 0.25


@dataclass(slots=True)
class StepSampler:
    """Called for every step, in the order `ended`, `wants`, `add`, `due`. `wants` exists because a sample is not free:
    its sums take a look at every sequence.

    `profile` are steps that were timed before the first request: every new connection gets them first, because its
    router may know nothing of this worker."""

    profile: Sequence[StepTime] = ()
    _num_steps: int = 0  # steps that only decoded, since the last sample of such steps
    _num_decoding: int = 0  # their sequences, summed over those steps
    _seconds: float = 0.0  # their time
    _taken_s: dict[bool, float] = field(default_factory=dict)  # time of the last sample, by whether it had prompts
    _told_s: float = float("-inf")
    _samples: list[StepTime] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_over()

    def ended(self, has_prefill: bool, num_decoding: int, seconds: float) -> None:
        """A step has ended; `seconds` includes the time since the step before."""
        if num_decoding and not has_prefill:
            self._num_steps += 1
            self._num_decoding += num_decoding
            self._seconds += seconds

    def wants(self, has_prefill: bool, now_s: float) -> bool:
        """Whether a sample of a step of this kind is wanted now."""
        return now_s >= self._taken_s.get(has_prefill, float("-inf")) + SAMPLE_EVERY_S

    def add(self, sample: StepTime, now_s: float) -> None:
        """Adds a sample of the latest step. The steps that are summed up with it are assumed to have had sequences of
        the same length."""
        has_prefill = sample.num_prefill_tokens > 0
        self._taken_s[has_prefill] = now_s
        if not has_prefill and sample.num_decoding and self._num_steps:
            num_tokens = sample.decode_context_tokens * self._num_decoding // sample.num_decoding
            sample = StepTime(0, 0, self._num_decoding, num_tokens, self._seconds, self._num_steps)
            self._forget_sums()
        self._samples.append(sample)

    def _forget_sums(self) -> None:
        self._num_steps = self._num_decoding = 0
        self._seconds = 0.0

    def due(self, now_s: float, is_idle: bool) -> StepTimes | None:
        """The samples to send now, if any. An idle worker holds nothing back."""
        if not self._samples or (now_s < self._told_s + TELL_EVERY_S and not is_idle):
            return None
        self._told_s = now_s
        samples, self._samples = tuple(self._samples), []
        return StepTimes(samples)

    def start_over(self) -> None:
        """A new connection has begun, on which the router knows nothing yet."""
        self._taken_s.clear()
        self._forget_sums()
        self._told_s = float("-inf")
        self._samples = list(self.profile)
