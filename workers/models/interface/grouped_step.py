"""The attention of layers that lie in several page groups: each layer's calls go to the step of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from slipstream.kernels.ops import AttentionShape, AttentionStep
from slipstream.workers.models.directory.kv_spec import KvSpec

Inputs = TypeVar("Inputs")


@dataclass(frozen=True, slots=True)
class GroupedStep:
    """An `AttentionStep` whose `layer` is one of the model's. `steps` are by group, `places` by layer."""

    steps: tuple[AttentionStep, ...]
    places: tuple[tuple[int, int], ...]

    def write(self, qkv: Tensor, qk_norm: Tensor | None, layer: int, rotary: int = 0) -> Tensor:
        group, slot = self.places[layer]
        return self.steps[group].write(qkv, qk_norm, slot, rotary)

    def attend(self, q: Tensor, layer: int, window: int | None, sinks: Tensor | None = None) -> Tensor:
        group, slot = self.places[layer]
        return self.steps[group].attend(q, slot, window, sinks)


def begin_groups(
    spec: KvSpec,
    attention: AttentionShape,
    inputs: Sequence[Inputs],
    begin: Callable[[Inputs, AttentionShape], AttentionStep],
) -> AttentionStep:
    """Begins a step with `begin`, once for the `inputs` of each group."""
    groups = spec.page_groups
    if groups.is_single:
        return begin(inputs[0], attention)
    shapes = []
    for group in range(len(groups.windows)):
        own = (layer.window for layer, place in zip(spec.layers, groups.places, strict=True) if place[0] == group)
        shapes.append(replace(attention, windows=frozenset(own)))
    steps = tuple(begin(of_group, shape) for of_group, shape in zip(inputs, shapes, strict=True))
    return GroupedStep(steps, groups.places)
