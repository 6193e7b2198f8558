"""The best division of a budget: a knapsack with one choice for each model (multiple-choice knapsack), solved by
dynamic programming over what the models before have used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_STATES = 4_000  # the best of them go on, where GPUs and workers make more


@dataclass(frozen=True, slots=True)
class ShareOption:
    """A number of workers for a model, with what they take of the budget: `value` is to be as large as possible, and of
    equal ones `size` as small as possible."""

    num_workers: int
    num_gpus: float
    value: float
    size: float


@dataclass(frozen=True, slots=True)
class _State:
    value: float
    size: float
    chosen: tuple[int, ...]


def divide(
    options: Mapping[str, Sequence[ShareOption]], max_workers: float, max_gpus: float
) -> dict[str, ShareOption] | None:
    """One option for each model, within the budget. None: there are no options that fit."""
    states: dict[tuple[int, float], _State] = {(0, 0.0): _State(0.0, 0.0, ())}
    for of_model in options.values():
        after: dict[tuple[int, float], _State] = {}
        for (workers, gpus), state in states.items():
            for number, option in enumerate(of_model):
                used = (workers + option.num_workers, round(gpus + option.num_gpus, 6))
                if used[0] > max_workers or used[1] > max_gpus:
                    continue
                value, size = state.value + option.value, state.size + option.size
                known = after.get(used)
                if known is None or (value, -size) > (known.value, -known.size):
                    after[used] = _State(value, size, (*state.chosen, number))
        if len(after) > MAX_STATES:
            best = sorted(after, key=lambda used: (-after[used].value, after[used].size))[:MAX_STATES]
            after = {used: after[used] for used in best}
        states = after
    if not states:
        return None
    best_state = max(states.values(), key=lambda state: (round(state.value, 6), -state.size))
    return {name: options[name][number] for name, number in zip(options, best_state.chosen, strict=True)}
