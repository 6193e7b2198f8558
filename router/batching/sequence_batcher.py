"""The scheduler of models with sequences. A sequence holds a slot of one instance from its first request to its end; if
no slot is free, it waits in the backlog.

    START --> slot free? --yes--> in a slot --END, idle, cancelled, instance lost--> over, the slot is free
                  |no                ^
                  +---> backlog -----+  when a slot is free; rejected at its time-out

It follows Triton's sequence batcher but for one point: a sequence is idle only while it has no request waiting or
running. (Triton counts from the arrival of the last request, so one that runs for longer than the limit, or that waits
in the backlog for longer, ends its sequence.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count

from slipstream.router.batching.batch_keys import batch_keys_of
from slipstream.router.batching.batch_rule import BatchRule
from slipstream.router.batching.control_inputs import ControlInputs
from slipstream.router.batching.instance_batches import DirectBatches, InstanceBatches, OldestBatches, Place
from slipstream.router.batching.request_sequence import RequestSequence, SequenceSlot
from slipstream.router.batching.scheduler import NEVER_S, BatchItem, QueuedRequest, RefusedRequest, RequestBatch
from slipstream.router.batching.sequence_slots import SequenceSlots
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.infer_request import SequenceFlags
from slipstream.router.tensors.model_spec import ModelSpec, SequenceBatching
from slipstream.router.tensors.tensor import Tensor


class SequenceBatcher:
    def __init__(self, spec: ModelSpec, batching: SequenceBatching) -> None:
        self._model = spec.name
        self._max_batch_size = spec.max_batch_size
        self._batching = batching
        self._idle_limit_s = batching.max_idle_us / 1e6
        self._keys = batch_keys_of(spec)
        self._controls = ControlInputs(spec)
        self._instances: dict[str, InstanceBatches] = {}
        self._slots = SequenceSlots(num_slots(spec, batching))
        self._by_id: dict[int | str, RequestSequence] = {}  # those that are open
        self._idle: OrderedDict[RequestSequence, None] = OrderedDict()  # the one that is idle for longest first
        self._waiting: dict[QueuedRequest, RequestSequence] = {}
        self._running: dict[QueuedRequest, RequestSequence] = {}
        self._executing: dict[str, RequestBatch] = {}  # by instance
        self._rejected: list[RefusedRequest] = []
        self._numbers = count(1)
        self._ids = count(1)  # for iterative sequences without an id

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_sequences(self) -> int:
        """That may get more requests."""
        return len(self._by_id)

    @property
    def next_time(self) -> float | None:
        if self._rejected:
            return 0.0
        next_s = min((each.wait_until_s for each in self._instances.values()), default=NEVER_S)
        next_s = min(next_s, self._slots.backlog.next_expiry_s)
        if self._idle:
            next_s = min(next_s, next(iter(self._idle)).idle_since_s + self._idle_limit_s)
        return next_s if next_s < NEVER_S else None

    def add_instance(self, instance: str, now: float) -> None:
        slots = self._slots.add_instance(instance)
        self._instances[instance] = self._batches_of(slots)
        self._fill(now)

    def remove_instance(self, instance: str, now: float) -> Sequence[RefusedRequest]:
        """Its sequences are over, as their states are lost; those that had not begun get a slot of another instance."""
        batches = self._instances.pop(instance, None)
        if batches is None:
            return ()
        executing = self._executing.pop(instance, None)
        for request in executing.requests if executing is not None else ():
            del self._running[request]
        rejected = []
        lost = self._slots.remove_instance(instance)
        for sequence in sorted(lost, key=lambda each: each.number, reverse=True):
            if sequence.has_begun:
                self._close(sequence)
                rejected += self._withdraw_all(sequence, self._instance_lost(sequence, instance))
            else:
                self._slots.backlog.add_first(sequence)
        self._fill(now)
        return rejected

    def retire_instance(self, instance: str) -> None:
        self._slots.retire_instance(instance)

    def has_sequences(self, instance: str) -> bool:
        return self._slots.has_sequences(instance)

    def add(self, request: QueuedRequest, now: float) -> None:
        flags = self._checked_flags(request)
        sequence = self._by_id.get(flags.correlation_id)
        if sequence is None:
            if not flags.is_start:
                raise self._not_started(flags)
            sequence = RequestSequence(flags.correlation_id, request.request.tenant, next(self._numbers))
            self._by_id[flags.correlation_id] = sequence
            self._slots.place(sequence)
        self._append(sequence, request, now)
        if flags.is_end:
            self._close(sequence)

    def retry(self, request: QueuedRequest, now: float) -> bool:
        """A sequence is never replayed: the state that its requests have built up is lost."""
        return False

    def reschedule(self, request: QueuedRequest, now: float) -> None:
        """Raises InferError if its sequence is over."""
        flags = request.request.sequence
        assert flags is not None
        request.request.sequence = SequenceFlags(flags.correlation_id)
        self.add(request, now)

    def cancel(self, request: QueuedRequest, now: float) -> bool:
        """The sequence is over after the requests before this one; those behind it are cancelled with it."""
        sequence = self._waiting.get(request)
        if sequence is None:
            return False
        first = sequence.waiting.index(request)
        error = self._cancelled(sequence)
        for each in self._withdraw(sequence, first):
            if each is not request:
                self._rejected.append(RefusedRequest(each, error))
        self._close(sequence)
        if not sequence.has_requests:
            self._slots.release(sequence)
            self._fill(now)
        return True

    def take(self, instance: str, now: float) -> RequestBatch | None:
        batches = self._instances.get(instance)
        places = batches.choose(now) if batches is not None else ()
        if batches is None or not places:
            return None
        batch = RequestBatch(self._items(places))
        self._executing[instance] = batch
        if batches.frees_at_once:
            for sequence in places:
                if sequence is not None and not sequence.is_open and not sequence.waiting:
                    self._slots.release(sequence)
            self._fill(now)
        return batch

    def store_states(self, request: QueuedRequest, outputs: Iterable[Tensor]) -> None:
        """Keeps the outputs of a running request that are implicit state. Called before `executed`; copies them."""
        sequence = self._running.get(request)
        if sequence is not None:
            states = (self._controls.state_of_output(output) for output in outputs)
            sequence.states.update({state.name: state for state in states if state is not None})

    def executed(self, batch: RequestBatch, instance: str, now: float) -> None:
        self._executing.pop(instance, None)
        for request in batch.requests:
            sequence = self._running.pop(request, None)
            if sequence is None:
                continue  # its instance was removed
            sequence.num_running -= 1
            if self._batching.is_iterative and request not in self._waiting:
                self._close(sequence)
            self._go_on(sequence, now)
        self._fill(now)

    def due(self, now: float) -> Sequence[RefusedRequest]:
        while self._idle:
            sequence = next(iter(self._idle))
            if sequence.idle_since_s + self._idle_limit_s > now:
                break
            self._close(sequence)
            self._slots.release(sequence)
        self._fill(now)
        for sequence in self._slots.backlog.pop_expired(now):
            self._close(sequence)
            self._rejected += self._withdraw_all(sequence, sequence_timed_out())
        for batches in self._instances.values():
            if batches.wait_until_s <= now:
                batches.wait_until_s = NEVER_S
        rejected, self._rejected = self._rejected, []
        return rejected

    def _batches_of(self, slots: list[SequenceSlot]) -> InstanceBatches:
        batching = self._batching
        if batching.strategy == "direct":
            return DirectBatches(slots, batching.max_queue_delay_us / 1e6, batching.minimum_slot_utilization)
        rule = BatchRule.of(self._max_batch_size, batching.preferred_batch_sizes, batching.max_queue_delay_us)
        return OldestBatches(slots, rule)

    def _checked_flags(self, request: QueuedRequest) -> SequenceFlags:
        if request.batch_size > 1:
            raise self._refusal("must specify batch-size 1 due to requirements of sequence batcher")
        flags = request.request.sequence
        if flags is not None and flags.correlation_id:
            return flags
        if not self._batching.is_iterative:
            raise self._refusal("must specify a non-zero or non-empty correlation ID")
        own_id = next(each for each in self._ids if each not in self._by_id)
        request.request.sequence = SequenceFlags(own_id, is_start=True)
        return request.request.sequence

    def _append(self, sequence: RequestSequence, request: QueuedRequest, now: float) -> None:
        request.queued_s = request.ready_s = now
        if self._keys is not None:
            request.batch_key = self._keys.of(request.request)
        self._idle.pop(sequence, None)
        sequence.waiting.append(request)
        self._waiting[request] = sequence
        if sequence.slot is not None:
            if len(sequence.waiting) == 1:
                self._tell_if_ready(sequence, now)
        elif request.request.timeout_us:
            self._slots.backlog.set_expiry(sequence, now + request.request.timeout_us / 1e6)

    def _items(self, places: Sequence[Place]) -> tuple[BatchItem, ...]:
        items = [self._start(sequence) if sequence is not None else None for sequence in places]
        if None not in items:
            return tuple([item for item in items if item is not None])
        example = next(sequence for sequence in places if sequence is not None)
        request = next(item.request for item in items if item is not None and item.request is not None)
        empty = BatchItem(None, self._controls.of_empty_place(request, example.states))
        return tuple([item if item is not None else empty for item in items])

    def _start(self, sequence: RequestSequence) -> BatchItem:
        request = sequence.waiting.popleft()
        del self._waiting[request]
        self._running[request] = sequence
        sequence.num_running += 1
        sequence.has_begun = True
        flags = request.request.sequence
        assert flags is not None
        if flags.is_start:
            sequence.states = self._controls.initial_states()
        return BatchItem(request, self._controls.of(flags) + tuple(sequence.states.values()))

    def _go_on(self, sequence: RequestSequence, now: float) -> None:
        """A request of the sequence has been executed."""
        if sequence.waiting:
            self._tell_if_ready(sequence, now)
        elif not sequence.num_running and sequence.is_open:
            sequence.idle_since_s = now
            self._idle[sequence] = None
        elif not sequence.num_running:
            self._slots.release(sequence)

    def _tell_if_ready(self, sequence: RequestSequence, now: float) -> None:
        """The first of its waiting requests has become the first just now."""
        if sequence.slot is not None and not sequence.num_running:
            if self._controls.has_varying_states:
                self._compare_states(sequence)
            self._instances[sequence.slot.instance].ready(sequence, now)

    def _compare_states(self, sequence: RequestSequence) -> None:
        """Only states of equal shapes can be put one after the other in a batch."""
        request = sequence.waiting[0]
        flags, key = request.request.sequence, None if self._keys is None else self._keys.of(request.request)
        is_start = flags is not None and flags.is_start
        states = self._controls.initial_states() if is_start else sequence.states
        request.batch_key = (key, *[state.shape for state in states.values()])

    def _close(self, sequence: RequestSequence) -> None:
        """Later requests with its id do not belong to it."""
        sequence.is_open = False
        self._idle.pop(sequence, None)
        if self._by_id.get(sequence.correlation_id) is sequence:
            del self._by_id[sequence.correlation_id]

    def _fill(self, now: float) -> None:
        """The backlog gets the slots that are free."""
        for sequence in self._slots.fill():
            self._tell_if_ready(sequence, now)

    def _withdraw(self, sequence: RequestSequence, first: int = 0) -> list[QueuedRequest]:
        """Takes the waiting requests from the `first` on out of a sequence."""
        withdrawn = [sequence.waiting.pop() for _ in range(len(sequence.waiting) - first)][::-1]
        slot = sequence.slot
        for request in withdrawn:
            del self._waiting[request]
            if slot is not None:
                self._instances[slot.instance].withdrawn(request)
        return withdrawn

    def _withdraw_all(self, sequence: RequestSequence, error: InferError) -> list[RefusedRequest]:
        return [RefusedRequest(request, error) for request in self._withdraw(sequence)]

    def _refusal(self, what: str) -> InferError:
        return InferError(f"inference request to model '{self._model}' {what}")

    def _not_started(self, flags: SequenceFlags) -> InferError:
        return InferError(
            f"inference request for sequence {flags.correlation_id} to model '{self._model}' must specify the START "
            "flag on the first request of the sequence"
        )

    def _instance_lost(self, sequence: RequestSequence, instance: str) -> InferError:
        text = f"sequence {sequence.correlation_id} of model '{self._model}' is lost: instance '{instance}' has ended"
        return InferError(text, InferErrorCode.INTERNAL, FailureReason.BACKEND)

    def _cancelled(self, sequence: RequestSequence) -> InferError:
        text = f"sequence {sequence.correlation_id} of model '{self._model}' was cancelled"
        return InferError(text, InferErrorCode.CANCELLED, FailureReason.CANCELED)


def num_slots(spec: ModelSpec, batching: SequenceBatching) -> int:
    """Of one instance."""
    if batching.strategy == "oldest" and batching.max_candidate_sequences > 0:
        return batching.max_candidate_sequences
    return max(1, spec.max_batch_size)


def sequence_timed_out() -> InferError:
    text = "timeout of the corresponding sequence has been expired"
    return InferError(text, InferErrorCode.UNAVAILABLE, FailureReason.REJECTED)
