"""The sequence batcher as its specification says it, on plain lists, for one tenant. It is asked at every step of
time."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.tensors.infer_request import SequenceFlags
from slipstream.router.tensors.model_spec import SequenceBatching
from tests.support.router.batching.plain_batcher import num_taken

Slot = tuple[int, str]  # index, instance


@dataclass(eq=False)
class Step:
    id: str
    shape: object
    added: float
    flags: SequenceFlags
    # When it became the first of its sequence, in a slot, with none running, and how many had before it.
    ready: tuple[float, int] | None = None


@dataclass(eq=False)
class PlainSequence:
    id: int | str
    steps: list[Step] = field(default_factory=list)
    is_open: bool = True
    slot: Slot | None = None
    expires: float | None = None
    num_running: int = 0
    has_begun: bool = False
    idle_since: float | None = None


@dataclass
class PlainSequences:
    """`rejected` are the ids of requests that ended unserved since it was last cleared."""

    max_batch_size: int
    batching: SequenceBatching
    instances: list[str] = field(default_factory=list)
    alive: list[PlainSequence] = field(default_factory=list)  # in order of arrival
    running: dict[str, list[tuple[PlainSequence, str]]] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)
    num_ready: int = 0
    last_own_id: int = 0  # given to a request of an iterative sequence that has none

    def add_instance(self, instance: str, now: float) -> None:
        self.instances.append(instance)
        self._settle(now)

    def remove_instance(self, instance: str, now: float) -> None:
        self.instances.remove(instance)
        self.running.pop(instance, None)
        for sequence in list(self.alive):
            if sequence.slot is None or sequence.slot[1] != instance:
                continue
            if sequence.has_begun:
                self._end(sequence)
            else:
                sequence.slot = sequence.expires = sequence.steps[0].ready = None
        self._settle(now)

    def add(self, id: str, shape: object, flags: SequenceFlags | None, timeout_us: int, now: float) -> bool:
        """Returns False if the request lacks its START, or its id."""
        if flags is None:
            if not self.batching.is_iterative:
                return False
            flags = SequenceFlags(self._own_id(), is_start=True)
        found = [each for each in self.alive if each.id == flags.correlation_id and each.is_open]
        if not found and not flags.is_start:
            return False
        sequence = found[0] if found else PlainSequence(flags.correlation_id)
        if not found:
            self.alive.append(sequence)
            self._settle(now)
        sequence.steps.append(Step(id, shape, now, flags))
        sequence.idle_since = None
        if flags.is_end:
            sequence.is_open = False
        if sequence.slot is None and timeout_us:
            expires = now + timeout_us / 1e6
            sequence.expires = expires if sequence.expires is None else min(sequence.expires, expires)
        self._settle(now)
        return True

    def cancel(self, id: str, now: float) -> bool:
        for sequence in self.alive:
            for position, step in enumerate(sequence.steps):
                if step.id == id:
                    self.rejected += [each.id for each in sequence.steps[position + 1 :]]
                    del sequence.steps[position:]
                    sequence.is_open = False
                    self._settle(now)
                    return True
        return False

    def expire(self, now: float) -> None:
        for sequence in list(self.alive):
            idle_for = now - sequence.idle_since if sequence.idle_since is not None else 0.0
            if sequence.idle_since is not None and idle_for >= self.batching.max_idle_us / 1e6:
                self._end(sequence)
        self._settle(now)
        for sequence in list(self.alive):
            if sequence.slot is None and sequence.expires is not None and now >= sequence.expires:
                self._end(sequence)
        self._settle(now)

    def take(self, instance: str, now: float) -> list[str | None]:
        """The ids by place, None: an empty one."""
        held = [each for each in self.alive if each.slot is not None and each.slot[1] == instance]
        ready = [each for each in held if each.steps and not each.num_running]
        if not ready:
            return []
        places = self._direct(ready, now) if self.batching.strategy == "direct" else self._oldest(ready, now)
        if not places:
            return []
        ids: list[str | None] = []
        self.running[instance] = []
        for place in places:
            if place is None:
                ids.append(None)
                continue
            place.num_running += 1
            place.has_begun = True
            id = place.steps.pop(0).id
            ids.append(id)
            self.running[instance].append((place, id))
        if self.batching.strategy == "direct":
            for sequence, _ in self.running[instance]:
                if not sequence.is_open and not sequence.steps:
                    sequence.slot = None  # a slot is free when the last request of its sequence has begun
                    self.alive.remove(sequence)
        self._settle(now)
        return ids

    def executed(self, instance: str, now: float) -> None:
        for sequence, id in self.running.pop(instance):
            sequence.num_running -= 1
            if self.batching.is_iterative and id not in [step.id for step in sequence.steps]:
                sequence.is_open = False
            if sequence.is_open and not sequence.steps:
                sequence.idle_since = now
            if sequence in self.alive:
                self._set_ready(sequence, now)
        self._settle(now)

    def _direct(self, ready: list[PlainSequence], now: float) -> list[PlainSequence | None]:
        delay = self.batching.max_queue_delay_us / 1e6
        if delay and self.batching.minimum_slot_utilization:
            share = len(ready) / max(1, self.max_batch_size)
            waited = now - min(each.steps[0].added for each in ready)
            if share < self.batching.minimum_slot_utilization and waited < delay:
                return []
        by_index = {each.slot[0]: each for each in ready if each.slot is not None}
        first = by_index[min(by_index)]
        places = [by_index.get(index) for index in range(max(by_index) + 1)]
        return [each if each is not None and each.steps[0].shape == first.steps[0].shape else None for each in places]

    def _oldest(self, ready: list[PlainSequence], now: float) -> list[PlainSequence | None]:
        queue = sorted(ready, key=lambda each: each.steps[0].ready or (0.0, 0))
        num = num_taken(
            rows=[1 for _ in queue],
            shapes=[each.steps[0].shape for each in queue],
            waited=[now - (each.steps[0].ready or (0.0, 0))[0] for each in queue],
            max_rows=self.max_batch_size,
            preferred=self.batching.preferred_batch_sizes,
            delay=self.batching.max_queue_delay_us / 1e6,
        )
        return list(queue[:num])

    def _settle(self, now: float) -> None:
        """Ended sequences leave, free slots are filled in order, the first of each sequence is ready."""
        for sequence in list(self.alive):
            if not sequence.is_open and not sequence.steps and not sequence.num_running:
                self.alive.remove(sequence)
        taken = {each.slot for each in self.alive if each.slot is not None}
        free = [(index, name) for index in range(self._num_slots) for name in self.instances]
        free = [slot for slot in free if slot not in taken]
        for sequence in self.alive:
            if sequence.slot is None and free:
                sequence.slot = free.pop(0)
        for sequence in self.alive:
            self._set_ready(sequence, now)

    def _set_ready(self, sequence: PlainSequence, now: float) -> None:
        if sequence.slot is not None and sequence.steps and not sequence.num_running and not sequence.steps[0].ready:
            self.num_ready += 1
            sequence.steps[0].ready = (now, self.num_ready)

    def _own_id(self) -> int:
        used = [each.id for each in self.alive if each.is_open]
        self.last_own_id += 1
        while self.last_own_id in used:
            self.last_own_id += 1
        return self.last_own_id

    def _end(self, sequence: PlainSequence) -> None:
        self.rejected += [each.id for each in sequence.steps]
        self.alive.remove(sequence)

    @property
    def _num_slots(self) -> int:
        if self.batching.strategy == "oldest" and self.batching.max_candidate_sequences:
            return self.batching.max_candidate_sequences
        return max(1, self.max_batch_size)
