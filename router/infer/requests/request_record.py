"""What is remembered of tensor requests, for `explain`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from slipstream.router.tensors.infer_error import InferError

Outcome = Literal["", "success", "failed", "cancelled", "rejected"]


class Execution(NamedTuple):
    """One execution by an instance; `num_requests` and `num_rows` are those of the whole batch."""

    instance: str
    started_s: float
    num_requests: int
    num_rows: int


@dataclass(slots=True, eq=False)
class InferRecord:
    """Of one request. Times are of `time.monotonic`. `compute_s` are input, execution and output of the last execution,
    as the instance measured them. Those of an ensemble, and its `queue_s`, are the sums of its `num_steps` steps, of
    which `steps` has the first ones. `version_reason`: why that version, where there was a choice."""

    request_id: str
    client_id: str
    model: str
    version: str
    tenant: str
    parent_id: str
    received_s: float
    queued_s: float
    batch_size: int
    executions: list[Execution] = field(default_factory=list)
    compute_s: tuple[float, float, float] | None = None
    num_responses: int = 0
    first_response_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome = ""
    error: str = ""
    is_cache_hit: bool = False
    version_reason: str = ""
    steps: list[StepRecord] = field(default_factory=list)
    num_steps: int = 0
    queue_s: float = 0.0
    on_end: Callable[[InferRecord], None] | None = None  # what a traced request is given to

    def ended(self, now: float, outcome: Outcome, error: InferError | None = None) -> None:
        self.ended_s, self.outcome = now, outcome
        self.error = "" if error is None else error.message
        if self.on_end is not None:
            self.on_end(self)


class StepRecord(NamedTuple):
    """One request of an ensemble to the model of a step, with the ensemble's tensors that it reads and writes."""

    record: InferRecord
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class RequestTraces(Protocol):
    """Takes some requests, and gets their records when they have ended."""

    def takes(self, model: str) -> bool: ...
    def write(self, record: InferRecord) -> None: ...


class InferHistory:
    """The latest requests, at most `capacity` of them; a request id names the latest one that had it."""

    def __init__(self, capacity: int) -> None:
        self._records: deque[InferRecord] = deque()
        self._by_id: dict[str, InferRecord] = {}
        self._capacity = capacity

    def add(self, record: InferRecord) -> None:
        if len(self._records) >= self._capacity:
            oldest = self._records.popleft()
            if self._by_id.get(oldest.request_id) is oldest:
                del self._by_id[oldest.request_id]
        self._records.append(record)
        self._by_id[record.request_id] = record

    def get(self, request_id: str) -> InferRecord | None:
        return self._by_id.get(request_id)

    def find(self, wanted: str, may_see: Callable[[str], bool]) -> InferRecord | None:
        """The latest request of this id or, if there is none, the latest one whose client has given it this id.
        `may_see` says of which tenants."""
        record = self._by_id.get(wanted)
        if record is not None and may_see(record.tenant):
            return record
        same = [one for one in self.latest() if wanted in (one.request_id, one.client_id) and may_see(one.tenant)]
        return next((one for one in same if one.request_id == wanted), same[0] if same else None)

    def latest(self) -> Iterable[InferRecord]:
        """Newest first."""
        return reversed(self._records)
