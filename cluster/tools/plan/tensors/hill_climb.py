"""The search: one setting after the other is changed for as long as a change gains something."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, Self, TypeVar

from slipstream.cluster.tools.plan.tensors.tensor_settings import BATCHING, INSTANCES, SettingSpace, TensorSettings


class Score(Protocol):
    def is_better_than(self, other: Self) -> bool:
        """By more than chance makes of it."""


S = TypeVar("S", bound=Score)


def climb(start: TensorSettings, space: SettingSpace) -> Generator[TensorSettings, S, None]:
    """Yields settings to measure and is sent their scores, the present ones first. It ends when no step from the best
    ones gains. Each setting is measured once; a direction that gains is followed, and the other one is left out."""
    best, best_score = start, (yield start)
    seen = {start}
    has_gained = True
    while has_gained:
        has_gained = False
        for directions in (INSTANCES, *(BATCHING if space.tunes_batching else ())):
            for step in directions:
                goes_on = False
                while (candidate := step(best, space)) is not None and candidate not in seen:
                    seen.add(candidate)
                    score = yield candidate
                    if not score.is_better_than(best_score):
                        break
                    best, best_score, goes_on = candidate, score, True
                if goes_on:
                    has_gained = True
                    break
