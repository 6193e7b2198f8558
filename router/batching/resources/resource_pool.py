"""How much of each resource there is, and how much is in use. A resource is one for all devices, or one on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import RateResource

GLOBAL = -1
EVERY_DEVICE = -2

ResourceKey = tuple[str, int]  # name, device or GLOBAL


def counts_by_device(resources: Iterable[tuple[str, int, str | None]]) -> dict[str, dict[int, int]]:
    """From name, count and device: a number, "global", or None for each device."""
    counts: dict[str, dict[int, int]] = {}
    for name, num_copies, device in resources:
        key = EVERY_DEVICE if device is None else GLOBAL if device == "global" else int(device)
        counts.setdefault(name, {})[key] = num_copies
    return counts


@dataclass(slots=True)
class ResourcePool:
    """`configured` is how much there is, by name and device (or EVERY_DEVICE). Without it there is as much of each
    resource as the instance that takes most of it needs."""

    configured: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    _needs: dict[str, Counter[ResourceKey]] = field(default_factory=dict)  # by instance
    _limits: dict[ResourceKey, int] = field(default_factory=dict)
    _in_use: Counter[ResourceKey] = field(default_factory=Counter)

    @property
    def in_use(self) -> dict[ResourceKey, int]:
        return {key: count for key, count in self._in_use.items() if count}

    def add(self, instance: str, resources: tuple[RateResource, ...], device: int) -> None:
        """Raises InferError if the instance could never run."""
        needs: Counter[ResourceKey] = Counter()
        for resource in resources:
            needs[resource.name, GLOBAL if resource.is_global else device] = resource.count
        self._needs[instance] = needs
        try:
            self._limits = self._checked_limits()
        except InferError:
            self.remove(instance)
            raise

    def remove(self, instance: str) -> None:
        del self._needs[instance]
        self._limits = self._checked_limits()

    def has_room(self, instance: str) -> bool:
        needs = self._needs[instance]
        return all(self._in_use[key] + count <= self._limits[key] for key, count in needs.items())

    def shares(self, one: str, other: str) -> bool:
        """Whether two instances need the same resource."""
        return not self._needs[one].keys().isdisjoint(self._needs[other].keys())

    def allocate(self, instance: str) -> Counter[ResourceKey]:
        """Returns what it has taken, which `free` gives back."""
        needs = self._needs[instance]
        self._in_use.update(needs)
        return needs

    def free(self, needs: Counter[ResourceKey]) -> None:
        self._in_use.subtract(needs)

    def _checked_limits(self) -> dict[ResourceKey, int]:
        required: dict[ResourceKey, int] = {}
        for needs in self._needs.values():
            for key, count in needs.items():
                required[key] = max(required.get(key, 0), count)
        global_names = {name for name, device in required if device == GLOBAL}
        for name, device in required:
            if device != GLOBAL and name in global_names:
                raise InferError(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        if not self.configured:
            return required
        return {key: self._configured_limit(key, count) for key, count in required.items()}

    def _configured_limit(self, key: ResourceKey, required: int) -> int:
        name, device = key
        counts = self.configured.get(name, {})
        if device == GLOBAL:
            limit = max(counts.values(), default=0)
        else:
            limit = max(counts.get(device, 0), counts.get(EVERY_DEVICE, 0))
        if limit < required:
            raise InferError(
                f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more model '
                f"instances, the minimum required count is {required}"
            )
        return limit
