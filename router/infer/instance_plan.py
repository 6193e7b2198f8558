"""The instances that the groups of a model's configuration ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
