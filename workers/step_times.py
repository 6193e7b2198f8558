"""Which steps the router is told the times of: a few a second, of each kind, from the first on.

Steps that only decode are short, and single ones say little of their mean: where a process has a share of a processor
(a CPU quota), most take no time and a few a whole period of the quota. So all of them since the last sample are told as
one sum. Steps with prompts are long, and one of them is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.messages import StepTime, StepTimes

SAMPLE_EVERY_S = 0.1  # of steps that decode only, and of steps with prompts, each
TELL_EVERY_S = 0.25


@dataclass(slots=True)
class StepSampler:
    """Told of every step, and asked before the sums over one are made, as these cost a look at every sequence: `ended`,
    `wants`, `add`, `due`."""

    _num_steps: int = 0  # that only decoded, since the last sample of them
    _num_decoding: int = 0  # summed over those
    _seconds: float = 0.0  # of those
    _taken_s: dict[bool, float] = field(default_factory=dict)  # by whether prompts were in the step
    _told_s: float = float("-inf")
    _samples: list[StepTime] = field(default_factory=list)

    def ended(self, has_prefill: bool, num_decoding: int, seconds: float) -> None:
        """A step, with what was between it and the one before."""
        if num_decoding and not has_prefill:
            self._num_steps += 1
            self._num_decoding += num_decoding
            self._seconds += seconds

    def wants(self, has_prefill: bool, now_s: float) -> bool:
        """Whether a step of this kind is to be added."""
        return now_s >= self._taken_s.get(has_prefill, float("-inf")) + SAMPLE_EVERY_S

    def add(self, sample: StepTime, now_s: float) -> None:
        """The latest step. Of the steps that are summed up with it, sequences are taken to have been as long."""
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
        """What to tell now. An idle worker keeps nothing back."""
        if not self._samples or (now_s < self._told_s + TELL_EVERY_S and not is_idle):
            return None
        self._told_s = now_s
        samples, self._samples = tuple(self._samples), []
        return StepTimes(samples)

    def start_over(self) -> None:
        """A new connection to the router, which knows nothing yet."""
        self._taken_s.clear()
        self._forget_sums()
        self._told_s = float("-inf")
