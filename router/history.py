"""The record of each request's way through the cluster, kept for a while after its end so that it can be explained.

Records are bounded each, so that `History` is: a request that is refused and placed again a hundred times keeps its
first and its latest events, and only so many decisions keep all that was compared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.generation import GenerationFinish, Phase, Slo, Usage
from slipstream.router.output_log import OutputLog
from slipstream.router.placement.decision import MAX_CANDIDATES, Decision

MAX_EVENTS = 64  # of a record: half of them its first, half its latest
MAX_FULL_DECISIONS = 8  # of a record; later ones keep only the chosen of their candidates


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


class RequestEvent(NamedTuple):
    """`detail` is one line for a human: where it went and why, or what went wrong. A placement has its `decision`, a
    migration where the request goes on. (A tuple, as every request has eight of them, and a frozen dataclass takes
    three times as long to make.)"""

    time_s: float
    phase: Phase
    attempt: int
    detail: str = ""
    decision: Decision | None = None
    moved_to: PeerId | None = None


class PagesLanded(NamedTuple):
    """A hand-off that came whole. `seconds` from the first page to the last, as the decode worker measured it."""

    time_s: float
    attempt: int
    num_bytes: int
    seconds: float


@dataclass(slots=True)
class RequestRecord:
    """Everything that happened to one request. Holds no tokens once it has ended; `output` is there until then."""

    request_id: str
    tenant: str
    priority: int
    num_prompt_tokens: int
    timeline: Timeline
    events: list[RequestEvent] = field(default_factory=list)
    finish: GenerationFinish | None = None
    names: tuple[str, ...] = ()
    slo: Slo = field(default_factory=Slo)
    session: str = ""
    timeout_s: float | None = None
    max_output_tokens: int = 0
    expected_output_tokens: int | None = None
    num_cached_tokens: int | None = None  # of the prompt, known with the first token
    output: OutputLog | None = None
    trace_id: str = ""
    version: str = ""  # of the model; "" while none is known
    landed: PagesLanded | None = None  # the latest
    num_events_left_out: int = 0  # between the first MAX_EVENTS / 2 and the rest
    num_full_decisions: int = 0
    num_retries: int = 0

    def note(
        self,
        phase: Phase,
        now: float,
        attempt: int,
        detail: str = "",
        decision: Decision | None = None,
        moved_to: PeerId | None = None,
    ) -> None:
        """Something happened. `decision` explains itself: `detail` is then its reason why."""
        self.timeline.mark(phase, now)
        if decision is not None:
            decision = self._bounded(decision)
            detail = decision.why
        if len(self.events) == MAX_EVENTS:
            del self.events[MAX_EVENTS // 2]
            self.num_events_left_out += 1
        self.events.append(RequestEvent(now, phase, attempt, detail, decision, moved_to))

    def end(self, finish: GenerationFinish) -> None:
        """It is over; its tokens are not needed for its story."""
        self.finish = finish
        self.output = None

    def _bounded(self, decision: Decision) -> Decision:
        self.num_full_decisions += 1
        if self.num_full_decisions > MAX_FULL_DECISIONS:
            return decision._replace(candidates=tuple(c for c in decision.candidates if decision.chose(c)))
        if len(decision.candidates) > MAX_CANDIDATES:
            return decision._replace(candidates=tuple(decision.candidates[:MAX_CANDIDATES]))
        return decision

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Where it was placed, try by try."""
        return tuple(event.decision for event in self.events if event.decision is not None)

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self.events[-1].phase if self.events else "queued"

    @property
    def num_attempts(self) -> int:
        """How many attempts were begun. To move is none."""
        return 1 + self.num_retries if self.decisions else 0

    @property
    def decode_name(self) -> str | None:
        """The decode worker that it was placed on or has moved to last."""
        for event in reversed(self.events):
            if event.moved_to is not None:
                return event.moved_to.name
            if event.decision is not None:
                return event.decision.decode.name
        return None

    @property
    def usage(self) -> Usage:
        """Its tokens: so far, or at its end."""
        if self.finish is not None:
            return self.finish.usage
        num_output_tokens = len(self.output) if self.output is not None else 0
        return Usage(self.num_prompt_tokens, num_output_tokens, self.num_cached_tokens or 0)

    @property
    def why(self) -> str:
        """The latest placement in one line."""
        decisions = self.decisions
        return decisions[-1].why if decisions else "not placed yet"

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

    @property
    def capacity(self) -> int:
        return self._capacity

    def latest(self) -> Iterator[RequestRecord]:
        """The records, the one that came last first."""
        return reversed(self._records.values())

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
