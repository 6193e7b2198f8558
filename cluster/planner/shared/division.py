"""The best division of a budget: a knapsack with one choice for each model (multiple-choice knapsack), solved by
dynamic programming over what the models before have used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_STATES = 4_000  # the best of them go on, where GPUs and workers make more


@dataclass(frozen=True, slots=True)
class ShareOption:
    """A number of workers for a model, or of instances, with what they take of the budget: `value` is to be as large as
    possible, and of equal ones `size` as small as possible."""

    num_workers: int
    num_gpus: float
    value: float
    size: float
    num_cpus: float = 0.0
    num_instances: int = 0


@dataclass(frozen=True, slots=True)
class _State:
    value: float
    size: float
    chosen: tuple[int, ...]


def divide(
    options: Mapping[str, Sequence[ShareOption]],
    max_workers: float,
    max_gpus: float,
    max_cpus: float = math.inf,
    max_instances: float = math.inf,
) -> dict[str, ShareOption] | None:
    """One option for each model, within the budget. None: there are no options that fit."""
    limits = (max_workers, max_gpus, max_cpus, max_instances)
    states: dict[tuple[float, ...], _State] = {(0.0,) * len(limits): _State(0.0, 0.0, ())}
    for of_model in options.values():
        after: dict[tuple[float, ...], _State] = {}
        taken = [_taken(option, limits) for option in of_model]
        for so_far, state in states.items():
            for number, option in enumerate(of_model):
                used = tuple(round(one + more, 6) for one, more in zip(so_far, taken[number], strict=True))
                if any(one > most for one, most in zip(used, limits, strict=True)):
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


def _taken(option: ShareOption, limits: tuple[float, ...]) -> tuple[float, ...]:
    """What has no limit of CPUs or of instances makes no states of its own."""
    cpus = option.num_cpus if limits[2] < math.inf else 0.0
    instances = option.num_instances if limits[3] < math.inf else 0.0
    return option.num_workers, option.num_gpus, cpus, instances
