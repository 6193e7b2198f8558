"""Which steps of a simulated worker are reported to its router with their times."""

from __future__ import annotations

FIRST_SAMPLES = 20  # steps of a kind that are reported as often as real workers do; later ones more and more rarely
SAMPLE_EVERY_S, LATEST_SAMPLE_EVERY_S = 0.1, 10.0


class SamplePace:
    """Often at the beginning, when the router knows nothing, then more and more rarely: each sample costs the router a
    fit, and one that is settled learns nothing from a worker whose times never change."""

    __slots__ = ("_due_s", "_num_taken")

    def __init__(self) -> None:
        self._num_taken = {False: 0, True: 0}  # by whether prompts were in the step
        self._due_s = {False: 0.0, True: 0.0}

    def is_due(self, has_prompts: bool, now_s: float) -> bool:
        return now_s >= self._due_s[has_prompts]

    def taken(self, has_prompts: bool, now_s: float) -> None:
        num_taken = self._num_taken[has_prompts] = self._num_taken[has_prompts] + 1
        every_s = min(SAMPLE_EVERY_S * 2.0 ** (num_taken // FIRST_SAMPLES), LATEST_SAMPLE_EVERY_S)
        self._due_s[has_prompts] = now_s + every_s
