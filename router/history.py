"""The record of each request's way through the cluster, kept for a while after its end so that it can be explained."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from slipstream.router.generation import GenerationFinish, Phase
from slipstream.router.placement.decision import Decision


@dataclass(slots=True)
class Timeline:
    """When a request first passed each station of its life, in seconds of the router's clock. None: not (yet).

    `reserved` and `transfer` stay None for local prefill. After a retry the first passage counts: that is what the
    client felt.
    """

    queued: float
    placed: float | None = None
    reserved: float | None = None
    prefill: float | None = None
    first_token: float | None = None
    transfer: float | None = None
    decode: float | None = None
    finished: float | None = None

    def mark(self, phase: Phase, now: float) -> None:
        if getattr(self, phase) is None:
            setattr(self, phase, now)


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """`detail` is one line for a human: where it went and why, or what went wrong."""

    time_s: float
    phase: Phase
    attempt: int
    detail: str = ""


@dataclass(slots=True)
class RequestRecord:
    """Everything that happened to one request. Holds no tokens."""

    request_id: str
    tenant: str
    priority: int
    num_prompt_tokens: int
    timeline: Timeline
    events: list[RequestEvent] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    finish: GenerationFinish | None = None
    names: tuple[str, ...] = ()

    def note(self, phase: Phase, now: float, attempt: int, detail: str = "") -> None:
        self.timeline.mark(phase, now)
        self.events.append(RequestEvent(now, phase, attempt, detail))

    @property
    def num_attempts(self) -> int:
        """How many attempts were begun."""
        return self.events[-1].attempt + 1 if self.decisions else 0

    @property
    def why(self) -> str:
        """The latest placement in one line."""
        return self.decisions[-1].why if self.decisions else "not placed yet"

    def lines(self) -> list[str]:
        """The whole story, one line an event, in milliseconds since the request came."""
        return [
            f"{(event.time_s - self.timeline.queued) * 1e3:10.2f} ms  attempt {event.attempt}  "
            f"{event.phase}{': ' + event.detail if event.detail else ''}"
            for event in self.events
        ]


class History:
    """Records by request id; the oldest fall out beyond `capacity`. A record is also found by its names; of several
    with the same name the latest is."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._by_name: dict[str, RequestRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: RequestRecord) -> None:
        earlier = self._records.pop(record.request_id, None)
        if earlier is not None:
            self._drop_names(earlier)
        elif len(self._records) == self._capacity:
            self._drop_names(self._records.popitem(last=False)[1])
        self._records[record.request_id] = record
        self._by_name.update(dict.fromkeys(record.names, record))

    def get(self, request_id: str) -> RequestRecord | None:
        """By request id or, if there is no such request, by name."""
        return self._records.get(request_id) or self._by_name.get(request_id)

    def _drop_names(self, record: RequestRecord) -> None:
        for name in record.names:
            if self._by_name.get(name) is record:
                del self._by_name[name]
