"""The dynamic batcher as its specification says it, on plain lists, for one tenant. It is asked at every step of
time."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.tensors.model_spec import DynamicBatching, ModelSpec, QueuePolicy


def num_taken(
    rows: list[int],
    shapes: list[object],
    waited: list[float],
    max_rows: int,
    preferred: tuple[int, ...],
    delay: float,
) -> int:
    """How many of a queue run together now, by the rows, shape and age of each."""
    sizes = set(preferred or ([max_rows] if max_rows else []))
    largest = max(sizes, default=0)
    totals = [sum(rows[: k + 1]) for k in range(len(rows))]  # of the first k + 1
    fit = 1
    while fit < len(rows) and totals[fit] <= max(1, max_rows) and shapes[fit] == shapes[0]:
        fit += 1
    hits = [k for k in range(1, fit + 1) if totals[k - 1] in sizes]
    beyond = [k for k in range(1, fit + 1) if k < len(rows) and totals[k] > largest]
    remembered = max(hits) if hits else min(beyond, default=0)
    is_late = delay > 0 and max(waited[:fit]) >= delay
    if remembered and not is_late:
        return remembered
    if fit < len(rows) or totals[fit - 1] >= largest or is_late or delay == 0:
        return fit
    return 0


@dataclass
class Entry:
    id: str
    rows: int
    shape: object
    level: int
    added: float
    deadline: float | None
    is_late: bool = False  # and kept
    is_returned: bool = False


@dataclass
class PlainBatcher:
    """`rejected` are the ids that timed out since it was last cleared."""

    max_rows: int
    batching: DynamicBatching | None
    entries: list[Entry] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, spec: ModelSpec) -> PlainBatcher:
        return cls(spec.max_batch_size, spec.dynamic_batching)

    def add(self, id: str, rows: int, shape: object, priority: int, timeout_us: int, now: float) -> bool:
        """Returns False if the queue is full."""
        level = self._level(priority)
        policy = self._policy(level)
        if policy.max_queue_size:
            held = [each for each in self.entries if each.level == level and not each.is_returned]
            if len(held) >= policy.max_queue_size:
                return False
        deadline = None
        if policy.default_timeout_us:
            wanted = policy.default_timeout_us
            if policy.allow_timeout_override and 0 < timeout_us < wanted:
                wanted = timeout_us
            deadline = now + wanted / 1e6
        self.entries.append(Entry(id, rows, shape, level, now, deadline))
        return True

    def put_back(self, entry: Entry) -> None:
        entry.is_returned, entry.is_late = True, False
        entry.deadline = None
        self.entries.append(entry)

    def cancel(self, id: str) -> bool:
        found = [each for each in self.entries if each.id == id]
        self.entries = [each for each in self.entries if each.id != id]
        return bool(found)

    def expire(self, now: float) -> None:
        for entry in sorted(self.entries, key=lambda each: each.deadline or 0):
            if entry.deadline is None or now < entry.deadline:
                continue
            self.entries.remove(entry)
            if self._policy(entry.level).timeout_action == "DELAY":
                entry.deadline, entry.is_late = None, True
                self.entries.append(entry)  # behind all others of its level
            else:
                self.rejected.append(entry.id)

    def take(self, now: float) -> list[Entry]:
        self.expire(now)
        if not self.entries:
            return []
        queue = sorted(self.entries, key=lambda each: (each.level, not each.is_returned, each.is_late))
        taken = queue[: self._num_taken(queue, now)]
        self.entries = [each for each in self.entries if each not in taken]
        return taken

    def _num_taken(self, queue: list[Entry], now: float) -> int:
        if self.batching is None:
            return 1
        return num_taken(
            rows=[each.rows for each in queue],
            shapes=[each.shape for each in queue],
            waited=[now - each.added for each in queue],
            max_rows=self.max_rows,
            preferred=self.batching.preferred_batch_sizes,
            delay=self.batching.max_queue_delay_us / 1e6,
        )

    def _level(self, priority: int) -> int:
        levels = self.batching.priority_levels if self.batching else 0
        if not levels:
            return 0
        assert self.batching is not None
        return priority if 1 <= priority <= levels else self.batching.default_priority_level

    def _policy(self, level: int) -> QueuePolicy:
        if self.batching is None:
            return QueuePolicy()
        return self.batching.priority_queue_policies.get(level, self.batching.default_queue_policy)
