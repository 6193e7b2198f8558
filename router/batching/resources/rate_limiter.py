"""Which instance may execute next, where executions need resources (`--rate-limit=execution_count`).

An instance that wants to execute stands in line. The first of the line is the one with the lowest number of executions
times its priority; no other takes what it waits for meanwhile, so an instance that needs much is not starved by those
that need little. This is the rule of Triton's rate limiter but for two points: an instance that shares no resource with
those before it does not wait for them, and one that is added later starts at the lowest rank of the others (so it does
not run before all others until it has executed as often).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from slipstream.router.batching.resources.resource_pool import ResourceKey, ResourcePool
from slipstream.router.tensors.model_spec import InstanceGroup


@dataclass(slots=True, eq=False)
class _LimitedInstance:
    priority: int
    num_executions: float = 0
    asked: int | None = None  # its number in the line; None: it does not stand there
    taken: Counter[ResourceKey] | None = None  # while it executes

    @property
    def rank(self) -> tuple[float, int]:
        return self.num_executions * self.priority, self.asked or 0


@dataclass(slots=True)
class RateLimiter:
    """For the instances of all models, by a key that is unique among them:

        if limiter.acquire(key):
            batch = scheduler.take(instance, now)     # None: `release(key, has_executed=False)`
            ...                                       # when it is executed: `release(key)`

    An instance that has nothing to execute any more calls `withdraw`. After `release`, `withdraw` and `remove` the
    instances that these return should try again, in that order."""

    configured: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    _pool: ResourcePool = field(init=False)
    _instances: dict[str, _LimitedInstance] = field(default_factory=dict)
    _line: set[str] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._pool = ResourcePool(self.configured)

    @property
    def in_use(self) -> dict[ResourceKey, int]:
        """How much of each resource is taken."""
        return self._pool.in_use

    def add(self, key: str, group: InstanceGroup, device: int = 0) -> None:
        """Raises InferError if there is too little of a resource for this instance to run at all."""
        self._pool.add(key, group.rate_resources, device)
        priority = max(1, group.rate_priority)
        lowest = min((each.rank[0] for each in self._instances.values()), default=0)
        self._instances[key] = _LimitedInstance(priority, lowest / priority)

    def remove(self, key: str) -> Sequence[str]:
        """The instance is gone; what it had taken is free."""
        instance = self._instances.pop(key)
        self._line.discard(key)
        if instance.taken is not None:
            self._pool.free(instance.taken)
        self._pool.remove(key)
        return self._in_line()

    def acquire(self, key: str) -> bool:
        """Whether the instance, which is free, may execute now; if so, it has its resources. If not, it stands in line
        until it may, or until it withdraws."""
        instance = self._instances[key]
        if instance.asked is None:
            instance.asked = next(self._numbers)
            self._line.add(key)
        if not self._pool.has_room(key) or any(self._is_before(each, key) for each in self._line):
            return False
        self._leave_line(key)
        instance.taken = self._pool.allocate(key)
        return True

    def release(self, key: str, *, has_executed: bool = True) -> Sequence[str]:
        instance = self._instances[key]
        if instance.taken is not None:
            self._pool.free(instance.taken)
            instance.taken = None
        instance.num_executions += has_executed
        return self._in_line()

    def withdraw(self, key: str) -> Sequence[str]:
        if key not in self._line:
            return ()
        self._leave_line(key)
        return self._in_line()

    def _is_before(self, other: str, key: str) -> bool:
        """Whether another of the line needs something that this instance needs too, and is to have it first."""
        return self._instances[other].rank < self._instances[key].rank and self._pool.shares(other, key)

    def _leave_line(self, key: str) -> None:
        self._line.discard(key)
        self._instances[key].asked = None

    def _in_line(self) -> list[str]:
        return sorted(self._line, key=lambda key: self._instances[key].rank)
