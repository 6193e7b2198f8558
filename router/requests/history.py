"""The record of what happened to each request, kept for a while after its end so that it can be explained.

Each record is bounded, and so is `History`: a request that is refused and placed again a hundred times keeps only its
first and its latest events, and only the first few decisions keep all of their candidates. A request that was never let
in has a record, too, which is made on demand (`rejections`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from typing import NamedTuple

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.generation import GenerationFinish, Levels, Phase, Slo, Usage
from slipstream.router.protocol.messages import SamplingParams, WorkSpan
from slipstream.router.requests.output_log import OutputLog
from slipstream.router.requests.placement_decision import MAX_CANDIDATES, Decision
from slipstream.router.requests.rejections import RejectedRequest, Rejections

MAX_EVENTS = 64  # per record: the first half of them and the latest half
MAX_WORK = 64  # per record: reports of workers about a traced request
MAX_FULL_DECISIONS = 8  # per record; later ones keep only the candidate that was chosen


@dataclass(slots=True)
class Timeline:
    """When a request first reached each phase of its life, in seconds of the router's clock; None: not (yet).

    `reserved` and `transfer` stay None for local prefill. If there are retries, the first time counts, because that is
    what the client noticed. `queued` of a request that was refused is when it came.
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
    """Something that happened to a request. `detail` is one line for people: where it went and why, or what went wrong.
    A placement comes with its `decision`, a migration with its destination. (It is a tuple because every request has
    about eight of them, and a frozen dataclass takes three times as long to create.)"""

    time_s: float
    phase: Phase
    attempt: int
    detail: str = ""
    decision: Decision | None = None
    moved_to: PeerId | None = None


# A `RequestEvent` of a tuple of its fields: as by calling the class, which takes twice as long, eight times a request.
event_of: Callable[[tuple[float, Phase, int, str, Decision | None, PeerId | None]], RequestEvent] = partial(
    tuple.__new__, RequestEvent
)


class PagesLanded(NamedTuple):
    """A hand-off that arrived completely. `seconds` is the time from the first page to the last, as measured by the
    decode worker."""

    time_s: float
    attempt: int
    num_bytes: int
    seconds: float


class WorkerWork(NamedTuple):
    """What a worker did for an attempt at a traced request. The ages of the spans are those at `heard_s`."""

    heard_s: float
    attempt: int
    worker: str
    spans: tuple[WorkSpan, ...]


class Sampling(NamedTuple):
    """How the tokens of a request are drawn, its defaults filled in."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float

    @staticmethod
    def of(params: SamplingParams) -> Sampling:
        return Sampling(params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty)


@dataclass(frozen=True, slots=True)
class KeptPages:
    """How long workers keep the pages of an ended request from `at_s` on, because its conversation will probably come
    back: the share `return_share` of those that call this tool ("": that call none) does so by then. `is_pinned`: its
    client has asked for that. 0 seconds: they are cached as any others."""

    at_s: float
    keep_s: float
    num_tokens: int
    tool: str
    return_share: float
    is_pinned: bool = False


@dataclass(slots=True)
class RequestRecord:
    """Everything that happened to one request. `output` is dropped at the request's end, so an old record holds no
    tokens."""

    request_id: str
    tenant: str
    priority: int
    num_prompt_tokens: int
    timeline: Timeline
    events: list[RequestEvent] = field(default_factory=list)
    finish: GenerationFinish | None = None
    names: tuple[str, ...] = ()
    slo: Slo = field(default_factory=Slo)
    levels: Levels | None = None  # None if it was refused
    session: str = ""
    timeout_s: float | None = None
    max_output_tokens: int = 0
    sampling: Sampling | None = None  # None if it was refused
    expected_output_tokens: int | None = None
    num_cached_tokens: int | None = None  # of the prompt, known with the first token
    output: OutputLog | None = None
    trace_id: str = ""
    work: tuple[WorkerWork, ...] = ()  # what its workers did, if it is traced
    model: str = ""  # "": the only one of its dispatcher
    version: str = ""  # of the model; "" while none has been chosen
    landed: PagesLanded | None = None  # the latest hand-off
    num_events_left_out: int = 0  # dropped between the first MAX_EVENTS / 2 events and the rest
    num_full_decisions: int = 0
    num_retries: int = 0
    continues: str = ""  # the request whose conversation it goes on with, as far as the router has noticed
    kept: KeptPages | None = None

    def note(
        self,
        phase: Phase,
        now: float,
        attempt: int,
        detail: str = "",
        decision: Decision | None = None,
        moved_to: PeerId | None = None,
    ) -> None:
        """Adds an event. If it has a `decision`, that provides the `detail`."""
        timeline, events = self.timeline, self.events
        if getattr(timeline, phase) is None:
            setattr(timeline, phase, now)
        if decision is not None:
            decision = self._bounded(decision)
            detail = decision.why
        if len(events) == MAX_EVENTS:
            del events[MAX_EVENTS // 2]
            self.num_events_left_out += 1
        events.append(event_of((now, phase, attempt, detail, decision, moved_to)))

    def end(self, finish: GenerationFinish) -> None:
        """The request has ended: keeps its finish and drops its tokens."""
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
        """The decisions of all its placements, in order."""
        return tuple(event.decision for event in self.events if event.decision is not None)

    @property
    def phase(self) -> Phase:
        """The phase that the request is in."""
        return self.events[-1].phase if self.events else "queued"

    @property
    def is_refused(self) -> bool:
        """Whether the request was never let in."""
        return self.phase == "refused"

    @property
    def num_attempts(self) -> int:
        """How many attempts were begun. A migration to another worker does not count as one."""
        return 1 + self.num_retries if self.decisions else 0

    @property
    def decode_name(self) -> str | None:
        """The name of the decode worker that the request was last placed on or moved to."""
        for event in reversed(self.events):
            if event.moved_to is not None:
                return event.moved_to.name
            if event.decision is not None:
                return event.decision.decode.name
        return None

    @property
    def usage(self) -> Usage:
        """How many tokens it has used so far, or used in all if it has ended."""
        if self.finish is not None:
            return self.finish.usage
        num_output_tokens = len(self.output) if self.output is not None else 0
        return Usage(self.num_prompt_tokens, num_output_tokens, self.num_cached_tokens or 0)

    @property
    def why(self) -> str:
        """The reason for the latest placement and where the request has moved since, or for being refused, in one
        line."""
        if self.is_refused:
            return self.events[-1].detail
        if self.decisions:
            latest, decode_name = self.decisions[-1], self.decode_name
            return latest.why if decode_name == latest.decode.name else f"{latest.why}; moved to {decode_name} since"
        return "not placed yet" if self.finish is None else "never placed"

    def lines(self) -> list[str]:
        """The events as text, one line each, with times in milliseconds since the request arrived."""
        return [
            f"{(event.time_s - self.timeline.queued) * 1e3:10.2f} ms  attempt {event.attempt}  "
            f"{event.phase}{': ' + event.detail if event.detail else ''}"
            for event in self.events
        ]


def record_of(refused: RejectedRequest) -> RequestRecord:
    """A record of a rejected request, which ended at the moment it arrived."""
    error = refused.error
    return RequestRecord(
        refused.request_id,
        refused.tenant,
        refused.priority,
        refused.num_prompt_tokens,
        Timeline(refused.at_s, finished=refused.at_s),
        events=[RequestEvent(refused.at_s, "refused", 0, f"{error.kind}: {error.message}")],
        finish=GenerationFinish("error", Usage(refused.num_prompt_tokens, 0, 0), error=error),
        names=refused.names,
        slo=refused.slo,
        session=refused.session,
        timeout_s=refused.timeout_s,
        max_output_tokens=refused.max_output_tokens,
        expected_output_tokens=refused.expected_output_tokens,
        trace_id=refused.trace_id,
        model=refused.model,
        version=refused.version,
    )


class History:
    """Records by request id, of which the latest `capacity` are kept, and beside them the latest refusals. A record can
    also be found by any of its names; if several share a name, the latest of them is found."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._by_name: dict[str, RequestRecord] = {}
        self._rejections = Rejections(capacity)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def capacity(self) -> int:
        return self._capacity

    def latest(self) -> Iterator[RequestRecord]:
        """The records, newest request first."""
        refused = map(record_of, self._rejections.latest())
        return merge(reversed(self._records.values()), refused, key=lambda record: record.timeline.queued, reverse=True)

    def refuse(self, refused: RejectedRequest) -> None:
        """Keeps the record of a rejected request."""
        self._rejections.add(refused)

    def add(self, record: RequestRecord, replaces: str = "") -> None:
        """`replaces` is the id of an ended request, whose record is dropped, so that the many requests of one search do
        not displace those of others."""
        earlier = self._records.pop(replaces or record.request_id, None)
        if earlier is not None:
            self._drop_names(earlier)
        elif len(self._records) == self._capacity:
            self._drop_names(self._records.popitem(last=False)[1])
        self._records[record.request_id] = record
        for name in record.names:
            self._by_name[name] = record

    def get(self, request_id: str) -> RequestRecord | None:
        """The record with this request id or, if there is none, with this name."""
        record = self._records.get(request_id)
        if record is not None:
            return record
        named, refused = self._by_name.get(request_id), self._rejections.get(request_id)
        if refused is None or (named is not None and named.timeline.queued > refused.at_s):
            return named
        return record_of(refused)

    def _drop_names(self, record: RequestRecord) -> None:
        for name in record.names:
            if self._by_name.get(name) is record:
                del self._by_name[name]
