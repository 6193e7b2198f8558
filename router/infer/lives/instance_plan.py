"""The instances that the groups of a model's configuration ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.router.tensors.model_spec import InstanceGroup, InstanceKind

KIND_NAMES: dict[InstanceKind, str] = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """`name` is Triton's: `M_0_1` is the second instance of the first group. On further GPUs it has the device, too."""

    name: str
    group: InstanceGroup
    device: int = 0

    @property
    def kind(self) -> InstanceKind:
        return self.group.kind

    @property
    def kind_name(self) -> str:
        """As `initialize` of a Python model gets it."""
        return KIND_NAMES[self.kind]

    @property
    def essence(self) -> PlannedInstance:
        """Without what says how many there are beside it."""
        return replace(self, group=replace(self.group, count=0, devices=()))


def count_in(groups: Sequence[InstanceGroup]) -> int:
    """Of the first group that is not passive, which is the one that `scaled` changes; 0: there is none."""
    return next((group.count for group in groups if not group.is_passive), 0)


def scaled(groups: Sequence[InstanceGroup], count: int) -> tuple[InstanceGroup, ...]:
    """The same groups, with this many instances in the first one that is not passive."""
    position = next((at for at, group in enumerate(groups) if not group.is_passive), None)
    return tuple(replace(group, count=count) if at == position else group for at, group in enumerate(groups))


def can_become(before: Mapping[str, PlannedInstance], after: Mapping[str, PlannedInstance]) -> bool:
    """Whether the instances that both have are the same, so that some come and others go."""
    common = before.keys() & after.keys()
    return bool(after) and all(before[name].essence == after[name].essence for name in common)


def planned_instances(groups: Sequence[InstanceGroup]) -> Iterator[PlannedInstance]:
    """Passive groups have instances that get no requests, so there are none."""
    for group in groups:
        if group.is_passive:
            continue
        for index in range(group.count):
            name = f"{group.name}_{index}"
            for device in group.devices or (0,):
                is_first = not group.devices or device == group.devices[0]
                yield PlannedInstance(name if is_first else f"{name}_gpu{device}", group, device)


def plan_of(groups: Sequence[InstanceGroup]) -> dict[str, PlannedInstance]:
    """By name."""
    return {one.name: one for one in planned_instances(groups)}
