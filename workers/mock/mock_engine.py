"""A worker's behaviour without a model: credits, reservations, and steps that take the time given by a profile.

    Generate ---------------------> queued --steps--> decoding --> finished             (decode worker)
    Reserve --> reserved --Start--> arriving --transfer time--> decoding --> finished   (decode worker)
    Prefill ---------------------> queued --steps--> sending --transfer time--> gone    (prefill worker)

`moves` handles attempts that move while they decode, `batch` the steps. There are no sockets and no clock: it takes
messages and times and returns messages, so the same object runs behind a connection and under virtual time. Tokens are
a function of the prompt and the position alone, so a client can check whether an answer that moved between workers is
the one it would have got otherwise (`attempt.expected_token`). They do not form text, so requests with a grammar are
refused, as by a real engine without a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Credits,
    EngineRequest,
    Extend,
    Failed,
    Generate,
    HandedOff,
    Migrate,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    Resume,
    Role,
    RouterMessage,
    Start,
    Stats,
    StepOutput,
    StepTimes,
    WorkerMessage,
)
from slipstream.workers.mock.attempt_timers import AttemptTimers
from slipstream.workers.mock.mock_attempt import AttemptKey, MockAttempt, MockState
from slipstream.workers.mock.mock_attempts import MockAttempts
from slipstream.workers.mock.mock_migrations import MockMigrations
from slipstream.workers.mock.mock_pages import MockPages
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_steps import MockSteps
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

SPENDING = (Generate, Reserve, Prefill, Adopt, Extend)  # messages that spend credits


class MockEngine:
    """One incarnation of a worker. A lost connection ends it; the next connection begins with a new one."""

    def __init__(self, profile: MockProfile, role: Role, tickets: TicketIssuer, model: str = "") -> None:
        self._profile = profile
        self._role = role
        self._tickets = tickets
        self._book = MockAttempts(profile, model)
        self._timers = AttemptTimers()
        self._batch = MockSteps(self._book, self._timers, role)
        self._moves = MockMigrations(self._book, self._batch, self._timers, tickets)
        self._last_seq = 0
        self._told: Credits | None = None

    # ---- messages

    def handle(self, message: RouterMessage, now_s: float) -> Sequence[WorkerMessage]:
        """Answers at once; what takes time comes from `advance`."""
        if isinstance(message, SPENDING):
            self._last_seq = message.seq
        answer: WorkerMessage | None = None
        match message:
            case Generate(_, request):
                answer = self._generate(request, now_s)
            case Reserve(request=request):
                answer = self._reserve(request, now_s)
            case Prefill(_, request, ticket):
                answer = self._prefill(request, ticket, now_s)
            case Start(request_id, attempt, token_ids):
                self._start((request_id, attempt), token_ids, now_s)
            case Adopt(request=request):
                answer = self._not_of_role("decode", request) or self._moves.adopt(message, now_s)
            case Extend():
                answer = self._moves.extend(message, now_s)
            case Migrate():
                answer = self._moves.migrate(message)
            case Resume(request_id, attempt):
                self._moves.resume((request_id, attempt), now_s)
            case Cancel(request_id, attempt):
                self._cancel((request_id, attempt))
            case PeerLost(peer):
                return self._peer_lost(peer)
        return [] if answer is None else [answer]

    def refuse(self, reason: str) -> None:
        """Takes nothing new from now on."""
        self._book.refusal = reason

    # ---- time

    def next_deadline_s(self) -> float | None:
        """When `advance` will have something to do; a time in the past means now."""
        timer_s, step_ends_s = self._timers.next_s, self._batch.step_ends_s
        if step_ends_s is None or timer_s is None:
            return timer_s if step_ends_s is None else step_ends_s
        return min(timer_s, step_ends_s)

    def advance(self, now_s: float) -> Sequence[WorkerMessage]:
        """Does everything that is due, but at most one step."""
        out: list[WorkerMessage] = []
        while (attempt := self._timers.pop_due(now_s)) is not None:
            if attempt in self._book and (message := self._timer_due(attempt, now_s)) is not None:
                out.append(message)
        ended_s = self._batch.step_ends_s
        if ended_s is not None and ended_s <= now_s:
            chunks = self._batch.end_step(now_s)
            if chunks:
                out.append(StepOutput(tuple(chunks)))
            out += [self._moves.freeze(attempt) for attempt in self._batch.stopping()]
            self._batch.begin_step(ended_s)
        else:
            self._batch.begin_step(now_s)
        return out

    # ---- reports

    @property
    def pages(self) -> MockPages:
        return self._book.pages

    @property
    def num_attempts(self) -> int:
        return len(self._book)

    @property
    def num_queued_tokens(self) -> int:
        """The number of prompt tokens that are not computed yet."""
        return self._batch.num_queued_tokens

    def credits(self) -> Credits | None:
        """The present credits, if they have changed."""
        profile, refuses = self._profile, self._book.refusal is not None
        free = Credits(
            self._last_seq,
            0 if refuses else max(0, profile.max_slots - len(self._book)),
            0 if refuses else max(0, self.pages.num_free),
            0 if refuses else max(0, profile.max_queued_tokens - self._batch.num_queued_tokens),
        )
        if free == self._told:
            return None
        self._told = free
        return free

    def step_times(self, now_s: float) -> StepTimes | None:
        """The times of some steps, now and then: exactly what the profile says."""
        return self._batch.step_times(now_s)

    def stats(self) -> Stats:
        num_used, num_cached = self.pages.num_used, self.pages.num_cached
        num_free = max(0, self._profile.num_pages - num_used - num_cached)
        pages = (("free", num_free), ("cached", num_cached), ("active", num_used))
        counters = (
            ("steps", float(self._batch.num_steps)),
            ("sampled_tokens", float(self._batch.num_sampled_tokens)),
            ("prefix_cache_queries", float(self._book.num_queried_tokens)),
            ("prefix_cache_hits", float(self._book.num_hit_tokens)),
        )
        num_running = self._batch.num_decoding
        return Stats(num_running, len(self._book) - num_running, pages, counters)

    # ---- attempts

    def _not_of_role(self, role: Role, request: EngineRequest) -> Failed | None:
        """The refusal of a request for the other role; None if this worker has that role."""
        if self._role == role:
            return None
        return Failed(request.request_id, request.attempt, f"this is a {self._role} worker", True)

    def _generate(self, request: EngineRequest, now_s: float) -> Failed | None:
        if (refusal := self._not_of_role("decode", request)) is not None:
            return refusal
        reserved = self._book.get((request.request_id, request.attempt))
        if reserved is not None and reserved.state is MockState.RESERVED:
            self._batch.enqueue(reserved, now_s)
            return None
        return self._enqueue(request, None, now_s)

    def _reserve(self, request: EngineRequest, now_s: float) -> WorkerMessage:
        if (refusal := self._not_of_role("decode", request)) is not None:
            return refusal
        attempt = self._book.admit(request, MockState.RESERVED)
        if isinstance(attempt, Failed):
            return attempt
        lease = attempt.lease
        self._book.count_cached(attempt)
        attempt.ticket = self._tickets.issue(lease.num_known, lease.num_pages - lease.num_known)
        self._timers.set(now_s + self._profile.start_lease_s, attempt)
        return Reserved(*attempt.key, attempt.num_cached, attempt.ticket)

    def _prefill(self, request: EngineRequest, ticket: HandoffTicket, now_s: float) -> Failed | None:
        return self._not_of_role("prefill", request) or self._enqueue(request, ticket, now_s)

    def _enqueue(self, request: EngineRequest, ticket: HandoffTicket | None, now_s: float) -> Failed | None:
        attempt = self._book.admit(request, MockState.QUEUED)
        if isinstance(attempt, Failed):
            return attempt
        attempt.ticket = ticket
        self._batch.enqueue(attempt, now_s)
        return None

    def _start(self, key: AttemptKey, token_ids: tuple[int, ...], now_s: float) -> None:
        attempt = self._book.get(key)
        if attempt is None or attempt.state is not MockState.RESERVED:
            return
        assert attempt.ticket is not None
        attempt.state = MockState.ARRIVING
        attempt.know(token_ids)
        self._timers.set(now_s + self._profile.arrival_s(attempt.ticket), attempt)

    def _cancel(self, key: AttemptKey) -> None:
        attempt = self._book.get(key)
        if attempt is not None:
            self._drop(attempt)

    def _drop(self, attempt: MockAttempt) -> None:
        self._book.remove(attempt)
        self._batch.drop(attempt)

    def _peer_lost(self, peer: PeerId) -> Sequence[WorkerMessage]:
        """Ends the attempts that were sending to a lost worker, or waiting for its pages."""
        out: list[WorkerMessage] = []
        for attempt in list(self._book):
            ticket = attempt.ticket
            if attempt.source == peer and attempt.state in (MockState.COPYING, MockState.RESERVED, MockState.ARRIVING):
                out.append(Failed(*attempt.key, f"pages did not arrive: {peer.name} is gone", True))
            elif self._role == "prefill" and ticket is not None and ticket.destination == peer:
                out.append(Failed(*attempt.key, f"pages could not be sent: {peer.name} is gone", True))
            else:
                continue
            self._drop(attempt)
        return out

    def _timer_due(self, attempt: MockAttempt, now_s: float) -> WorkerMessage | None:
        if attempt.state in (MockState.RESERVED, MockState.COPIED):
            self._drop(attempt)
            return Failed(*attempt.key, "no word came within the lease", True)
        if attempt.state is MockState.COPYING:
            return self._moves.copied(attempt, now_s)
        if self._role == "prefill":  # its pages have left
            self._drop(attempt)
            return None
        assert attempt.ticket is not None
        if attempt.lease.chain is not None:
            self.pages.remember(attempt.lease, len(attempt.lease.chain.digests))  # all that was full when it came
        self._batch.decode(attempt)
        return HandedOff(*attempt.key, attempt.num_sent_bytes, self._profile.arrival_s(attempt.ticket))
