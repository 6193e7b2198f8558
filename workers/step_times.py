"""Which steps the router is told the times of: a few a second, of each kind, from the first on."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.messages import StepTime, StepTimes

SAMPLE_EVERY_S = 0.1  # of steps that decode only, and of steps with prompts, each
TELL_EVERY_S = 0.25


@dataclass(slots=True)
class StepSampler:
    """Asked before the sums over a step are made, as these cost a look at every sequence: `wants`, `add`, `due`."""

    _taken_s: dict[bool, float] = field(default_factory=dict)  # by whether prompts were in the step
    _told_s: float = float("-inf")
    _samples: list[StepTime] = field(default_factory=list)

    def wants(self, has_prefill: bool, now_s: float) -> bool:
        """Whether a step of this kind is to be added."""
        return now_s >= self._taken_s.get(has_prefill, float("-inf")) + SAMPLE_EVERY_S

    def add(self, sample: StepTime, now_s: float) -> None:
        self._taken_s[sample.num_prefill_tokens > 0] = now_s
        self._samples.append(sample)

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
        self._told_s = float("-inf")
