"""A worker's conduct without a model: credits, reservations, steps that take the time a profile says.

    Generate ---------------------> queued --steps--> decoding --> finished             (decode worker)
    Reserve --> reserved --Start--> arriving --transfer time--> decoding --> finished   (decode worker)
    Prefill ---------------------> queued --steps--> sending --transfer time--> gone    (prefill worker)
    Adopt ---> copying --transfer time--> copied --Extend--> copying ... or reserved    (decode worker)
    decoding --Migrate(freeze), end of the step--> frozen --Resume--> decoding          (decode worker)

No sockets and no clock: messages and times in, messages out, so the same object runs behind a connection and under
virtual time. Tokens are a function of the prompt and the position alone: a client can tell whether an answer that
moved between workers is the one it would have got undisturbed (`attempt.expected_token`). They spell nothing, so a
request whose output has to follow a guide is refused, as a real engine without a tokenizer refuses it.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from slipstream.kv_transfer.ticket import HandoffTicket
from slipstream.router.messages import (
    Adopt,
    Cancel,
    Copied,
    Credits,
    EngineRequest,
    Extend,
    Failed,
    FinishReason,
    Frozen,
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
    StepTime,
    StepTimes,
    TokenChunk,
    WorkerMessage,
)
from slipstream.router.prefix.block_hash import HashChain, root_digest
from slipstream.workers.mock.attempt import Attempt, State, token_at
from slipstream.workers.mock.prefix_cache import MockPages
from slipstream.workers.mock.profile import FIRST_TOKEN_ID, MockProfile
from slipstream.workers.step_times import StepSampler
from slipstream.workers.ticket_office import TicketOffice

_ID_BYTES = 4

AttemptKey = tuple[str, int]


@dataclass(slots=True)
class MockEngine:
    """One incarnation of a worker: a lost connection ends it, the next begins with a new one."""

    profile: MockProfile
    role: Role
    tickets: TicketOffice
    model: str = ""
    pages: MockPages = field(init=False)
    _attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    _queue: deque[Attempt] = field(default_factory=deque)
    _decoding: dict[AttemptKey, Attempt] = field(default_factory=dict)
    _timers: list[tuple[float, int, Attempt]] = field(default_factory=list)  # arrivals and leases
    _num_timers: int = 0
    _queued_tokens: int = 0
    _context_tokens: int = 0  # of decoding sequences
    _step_ends_s: float | None = None
    _step_chunks: list[tuple[Attempt, int]] = field(default_factory=list)  # prompt tokens in the current step
    _step_decoding: list[Attempt] = field(default_factory=list)
    _steps: StepSampler = field(default_factory=StepSampler)
    _last_seq: int = 0
    _told: Credits | None = None
    _refusal: str | None = None
    _num_steps: int = 0
    _num_sampled_tokens: int = 0
    _num_queried_tokens: int = 0
    _num_hit_tokens: int = 0

    def __post_init__(self) -> None:
        self.pages = MockPages(self.profile.num_pages)

    # ---- what comes in

    def handle(self, message: RouterMessage, now_s: float) -> Sequence[WorkerMessage]:
        """Answers at once; what takes time comes from `advance`."""
        match message:
            case Generate(seq, request):
                self._last_seq = seq
                return self._generate(request, now_s)
            case Reserve(seq=seq, request=request):
                self._last_seq = seq
                return self._reserve(request, now_s)
            case Prefill(seq, request, ticket):
                self._last_seq = seq
                return self._prefill(request, ticket, now_s)
            case Start(request_id, attempt, token_ids):
                self._start((request_id, attempt), token_ids, now_s)
            case Adopt(seq=seq):
                self._last_seq = seq
                return self._adopt(message, now_s)
            case Extend(seq=seq):
                self._last_seq = seq
                return self._extend(message, now_s)
            case Migrate():
                return self._migrate(message)
            case Resume(request_id, attempt):
                self._resume((request_id, attempt), now_s)
            case Cancel(request_id, attempt):
                self._drop((request_id, attempt))
            case PeerLost(peer):
                return self._peer_lost(peer.name, peer.epoch)
        return []

    def refuse(self, reason: str) -> None:
        """Takes nothing new from now on."""
        self._refusal = reason

    # ---- time

    def next_deadline_s(self) -> float | None:
        """When `advance` has something to do; a time that is past means now."""
        timer_s = self._timers[0][0] if self._timers else None
        if self._step_ends_s is None or timer_s is None:
            return timer_s if self._step_ends_s is None else self._step_ends_s
        return min(timer_s, self._step_ends_s)

    def advance(self, now_s: float) -> Sequence[WorkerMessage]:
        """Everything that is due, at most one step of it."""
        out: list[WorkerMessage] = []
        while self._timers and self._timers[0][0] <= now_s:
            due_s, _, attempt = heapq.heappop(self._timers)
            if due_s == attempt.due_s and self._is_here(attempt):
                out += self._timer_due(attempt, now_s)
        if self._step_ends_s is not None and self._step_ends_s <= now_s:
            ended_s, self._step_ends_s = self._step_ends_s, None
            chunks = self._end_step(now_s)
            if chunks:
                out.append(StepOutput(tuple(chunks)))
            out += [self._freeze(key) for key, attempt in list(self._decoding.items()) if attempt.stops]
            self._begin_step(ended_s)
        else:
            self._begin_step(now_s)
        return out

    # ---- what can be told

    @property
    def num_attempts(self) -> int:
        return len(self._attempts)

    def credits(self) -> Credits | None:
        """What is free, if that is news."""
        profile = self.profile
        free = Credits(
            self._last_seq,
            0 if self._refusal else max(0, profile.max_slots - len(self._attempts)),
            0 if self._refusal else max(0, self.pages.num_free),
            0 if self._refusal else max(0, profile.max_queued_tokens - self._queued_tokens),
        )
        if free == self._told:
            return None
        self._told = free
        return free

    def step_times(self, now_s: float) -> StepTimes | None:
        """The times of some steps, now and then: exactly what the profile says."""
        return self._steps.due(now_s, self._step_ends_s is None)

    def stats(self) -> Stats:
        num_used, num_cached = self.pages.num_used, self.pages.num_cached
        num_free = max(0, self.profile.num_pages - num_used - num_cached)
        pages = (("free", num_free), ("cached", num_cached), ("active", num_used))
        counters = (
            ("steps", float(self._num_steps)),
            ("sampled_tokens", float(self._num_sampled_tokens)),
            ("prefix_cache_queries", float(self._num_queried_tokens)),
            ("prefix_cache_hits", float(self._num_hit_tokens)),
        )
        num_running = len(self._decoding)
        return Stats(num_running, len(self._attempts) - num_running, pages, counters)

    # ---- attempts

    def _generate(self, request: EngineRequest, now_s: float) -> Sequence[WorkerMessage]:
        key = (request.request_id, request.attempt)
        if self.role == "prefill":
            return [Failed(*key, "this is a prefill worker", True)]
        attempt = self._attempts.get(key)
        if attempt is not None and attempt.state is State.RESERVED:
            self._enqueue(attempt, now_s)
            return []
        return self._admit(request, State.QUEUED, now_s)[1]

    def _reserve(self, request: EngineRequest, now_s: float) -> Sequence[WorkerMessage]:
        key = (request.request_id, request.attempt)
        if self.role == "prefill":
            return [Failed(*key, "this is a prefill worker", True)]
        attempt, out = self._admit(request, State.RESERVED, now_s)
        if attempt is None:
            return out
        lease = attempt.lease
        self._count_cached(attempt)
        ticket = self.tickets.issue(lease.num_known, lease.num_pages - lease.num_known)
        attempt.ticket = ticket
        self._set_timer(now_s + self.profile.start_lease_s, attempt)
        return [Reserved(*key, attempt.num_cached, ticket)]

    def _prefill(self, request: EngineRequest, ticket: HandoffTicket, now_s: float) -> Sequence[WorkerMessage]:
        key = (request.request_id, request.attempt)
        if self.role == "decode":
            return [Failed(*key, "this is a decode worker", True)]
        attempt, out = self._admit(request, State.QUEUED, now_s)
        if attempt is not None:
            attempt.ticket = ticket
        return out

    def _admit(
        self, request: EngineRequest, state: State, now_s: float, num_room_tokens: int = 0
    ) -> tuple[Attempt | None, Sequence[WorkerMessage]]:
        key = (request.request_id, request.attempt)
        if self._refusal is not None:
            return None, [Failed(*key, self._refusal, True)]
        if key in self._attempts:
            return None, [Failed(*key, "this attempt is already here", True)]
        if request.sampling.guide is not None:
            return None, [Failed(*key, "guide is not served by a mock worker", False)]
        num_prompt = len(request.prompt_ids) // _ID_BYTES
        num_output = len(request.output_ids) // _ID_BYTES
        num_tokens = num_prompt + num_output
        max_output = min(request.sampling.max_tokens, self.profile.max_model_len - num_prompt)
        if num_prompt == 0 or num_output >= max_output:
            return None, [Failed(*key, f"{num_tokens} tokens leave nothing to generate", False)]
        tokens, chain = None, None
        if self.profile.prefix_caching:
            tokens = array("i", request.prompt_ids + request.output_ids)
            page_tokens = self.profile.page_tokens
            chain = HashChain(root_digest(self.model, request.cache_salt), page_tokens)
            chain.extend(tokens, num_tokens // page_tokens)
        num_pages = self.profile.pages_for(num_tokens + num_room_tokens)
        lease = self.pages.take(chain, num_pages, self._max_shared(num_tokens))
        if lease is None:
            return None, [Failed(*key, "no pages", True)]
        attempt = Attempt(
            request=request,
            state=state,
            seed=xxh3_64_intdigest(request.prompt_ids),
            num_prompt=num_prompt,
            num_output=num_output,
            num_uncomputed=0,
            max_output=max_output,
            lease=lease,
            tokens=tokens,
        )
        self._num_queried_tokens += num_tokens
        self._attempts[key] = attempt
        if state is State.QUEUED:
            self._enqueue(attempt, now_s)
        return attempt, []

    def _enqueue(self, attempt: Attempt, now_s: float) -> None:
        attempt.state = State.QUEUED
        attempt.due_s = None
        attempt.num_uncomputed = attempt.num_tokens - self._known_tokens(attempt)
        self._queued_tokens += attempt.num_uncomputed
        self._queue.append(attempt)
        self._begin_step(now_s)

    def _start(self, key: AttemptKey, token_ids: tuple[int, ...], now_s: float) -> None:
        attempt = self._attempts.get(key)
        if attempt is None or attempt.state is not State.RESERVED:
            return
        attempt.state = State.ARRIVING
        attempt.num_output += len(token_ids)
        if attempt.tokens is not None:
            attempt.tokens.extend(token_ids)
        self._set_timer(now_s + self._transfer_s(attempt), attempt)

    # ---- sequences that move while they decode

    def _adopt(self, message: Adopt, now_s: float) -> Sequence[WorkerMessage]:
        key = (message.request.request_id, message.request.attempt)
        if self.role == "prefill":
            return [Failed(*key, "this is a prefill worker", True)]
        attempt, out = self._admit(message.request, State.RESERVED, now_s, message.num_room_tokens)
        if attempt is None:
            return out
        self._count_cached(attempt)
        attempt.source = message.source
        return [self._expect(attempt, message.num_room_tokens, now_s)]

    def _extend(self, message: Extend, now_s: float) -> Sequence[WorkerMessage]:
        attempt = self._attempts.get((message.request_id, message.attempt))
        if attempt is None or attempt.state is not State.COPIED:
            return []
        attempt.num_output += len(message.token_ids)
        if attempt.tokens is not None:
            attempt.tokens.extend(message.token_ids)
        num_pages = self.profile.pages_for(attempt.num_tokens + message.num_room_tokens)
        if num_pages > attempt.lease.num_pages:
            self.pages.grow(attempt.lease, num_pages - attempt.lease.num_pages)
        return [self._expect(attempt, message.num_room_tokens, now_s)]

    def _expect(self, attempt: Attempt, num_room_tokens: int, now_s: float) -> WorkerMessage:
        """The next round: full pages come by themselves, the last ones when the first token here is known."""
        lease, num_full = attempt.lease, (attempt.num_tokens - 1) // self.profile.page_tokens
        first = min(lease.num_known, num_full)
        end = lease.num_pages if num_room_tokens else num_full
        attempt.ticket = self.tickets.issue(first, end - first)
        attempt.state = State.RESERVED if num_room_tokens else State.COPYING
        wait_s = self.profile.start_lease_s if num_room_tokens else self._transfer_s(attempt)
        self._set_timer(now_s + wait_s, attempt)
        return Reserved(attempt.request.request_id, attempt.request.attempt, attempt.num_cached, attempt.ticket)

    def _copied(self, attempt: Attempt, now_s: float) -> WorkerMessage:
        ticket, chain = attempt.ticket, attempt.lease.chain
        assert ticket is not None
        end = ticket.first_page + ticket.num_pages
        if chain is not None and attempt.tokens is not None:
            chain.extend(attempt.tokens, end)
            self.pages.remember(attempt.lease, end)
        attempt.state = State.COPIED
        self._set_timer(now_s + self.profile.start_lease_s, attempt)
        request, num_bytes = attempt.request, _num_bytes(ticket)
        return Copied(request.request_id, request.attempt, ticket.transfer_id, num_bytes, self._transfer_s(attempt))

    def _migrate(self, message: Migrate) -> Sequence[WorkerMessage]:
        key, ticket = (message.request_id, message.attempt), message.ticket
        attempt = self._decoding.get(key)
        num_pages = self.profile.pages_for(attempt.num_tokens - 1) if attempt is not None else 0
        if attempt is None or (message.freeze and num_pages > ticket.first_page + ticket.num_pages):
            reason = "it does not decode here" if attempt is None else f"it has {attempt.num_tokens} tokens by now"
            return [Failed(message.request_id, message.to_attempt, reason, True)]
        if not message.freeze:
            return []
        if attempt in self._step_decoding:
            attempt.stops = True
            return []
        return [self._freeze(key)]

    def _freeze(self, key: AttemptKey) -> WorkerMessage:
        attempt = self._decoding.pop(key)
        attempt.state, attempt.stops = State.FROZEN, False
        self._context_tokens -= attempt.num_tokens
        return Frozen(*key, attempt.num_output)

    def _resume(self, key: AttemptKey, now_s: float) -> None:
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        attempt.stops = False
        if attempt.state is State.FROZEN:
            self._decode(attempt)
            self._begin_step(now_s)

    def _drop(self, key: AttemptKey) -> None:
        attempt = self._attempts.pop(key, None)
        if attempt is None:
            return
        self.pages.give_back(attempt.lease)
        if attempt.state is State.QUEUED:
            self._queued_tokens -= attempt.num_uncomputed
            if attempt in self._queue:
                self._queue.remove(attempt)
        elif attempt.state is State.DECODING:
            del self._decoding[key]
            self._context_tokens -= attempt.num_tokens

    def _peer_lost(self, name: str, epoch: int) -> Sequence[WorkerMessage]:
        """Whoever was sending to a worker that is gone, or waited for its pages, lets go."""
        out: list[WorkerMessage] = []
        for key, attempt in list(self._attempts.items()):
            ticket, source = attempt.ticket, attempt.source
            is_arriving = attempt.state in (State.COPYING, State.RESERVED, State.ARRIVING)
            if source is not None and (source.name, source.epoch) == (name, epoch) and is_arriving:
                self._drop(key)
                out.append(Failed(*key, f"pages did not arrive: {name} is gone", True))
                continue
            if self.role == "prefill" and ticket is not None:
                peer = ticket.destination
                if (peer.name, peer.epoch) == (name, epoch):
                    self._drop(key)
                    out.append(Failed(*key, f"pages could not be sent: {name} is gone", True))
        return out

    # ---- steps

    def _begin_step(self, now_s: float) -> None:
        if self._step_ends_s is not None or not (self._queue or self._decoding):
            return
        profile = self.profile
        self._step_decoding = list(self._decoding.values())
        budget = profile.max_step_tokens - len(self._step_decoding)
        num_prompt_tokens = 0
        for attempt in self._queue:
            if budget <= 0:
                break
            if not attempt.has_begun:
                self._begin_prefill(attempt)
            take = min(budget, attempt.num_uncomputed)
            self._step_chunks.append((attempt, take))
            budget -= take
            num_prompt_tokens += take
        seconds = (
            profile.step_s
            + profile.decode_token_s * len(self._step_decoding)
            + profile.prefill_token_s * num_prompt_tokens
            + profile.context_token_s * self._context_tokens
        )
        self._step_ends_s = now_s + seconds
        if self._steps.wants(num_prompt_tokens > 0, now_s):
            pairs = sum(take * (one.num_tokens - one.num_uncomputed + take // 2) for one, take in self._step_chunks)
            mean = pairs // num_prompt_tokens if num_prompt_tokens else 0
            sample = StepTime(num_prompt_tokens, mean, len(self._step_decoding), self._context_tokens, seconds)
            self._steps.add(sample, now_s)

    def _end_step(self, now_s: float) -> list[TokenChunk]:
        self._num_steps += 1
        chunks = []
        for attempt in self._step_decoding:
            if attempt.state is State.DECODING and self._is_here(attempt):
                self._context_tokens += 1
                chunks.append(self._sample(attempt))
        for attempt, num_tokens in self._step_chunks:
            if not self._is_here(attempt):
                continue
            attempt.num_uncomputed -= num_tokens
            self._queued_tokens -= num_tokens
            self.pages.remember(
                attempt.lease, (attempt.num_tokens - attempt.num_uncomputed) // self.profile.page_tokens
            )
            if attempt.num_uncomputed == 0:
                self._queue.popleft()
                chunks.append(self._computed(attempt, now_s))
        self._step_decoding, self._step_chunks = [], []
        return chunks

    def _computed(self, attempt: Attempt, now_s: float) -> TokenChunk:
        """The whole prompt is: its first token, and on with it."""
        if self.role == "prefill":
            attempt.state = State.ARRIVING
            self._set_timer(now_s + self._transfer_s(attempt), attempt)
            return self._next_chunk(attempt)
        self._decode(attempt)
        self._context_tokens += 1
        return self._sample(attempt)

    def _decode(self, attempt: Attempt) -> None:
        attempt.state = State.DECODING
        self._decoding[attempt.request.request_id, attempt.request.attempt] = attempt
        self._context_tokens += attempt.num_tokens

    def _sample(self, attempt: Attempt) -> TokenChunk:
        if attempt.num_tokens % self.profile.page_tokens == 0:
            self._fill_page(attempt)
        chunk = self._next_chunk(attempt)
        if chunk.finish_reason is not None:
            self._drop((chunk.request_id, chunk.attempt))
        return chunk

    def _next_chunk(self, attempt: Attempt) -> TokenChunk:
        request, index = attempt.request, attempt.num_output
        token_id = token_at(attempt.seed, index, self.profile.vocab_size - FIRST_TOKEN_ID)
        attempt.num_output += 1
        if attempt.tokens is not None:
            attempt.tokens.append(token_id)
        self._num_sampled_tokens += 1
        reason: FinishReason | None = "length" if attempt.num_output >= attempt.max_output else None
        return TokenChunk(request.request_id, request.attempt, index, (token_id,), (), reason, None, attempt.num_cached)

    # ---- the prefix cache

    def _max_shared(self, num_tokens: int) -> int:
        """Pages that may be taken from the cache: the last token is always computed."""
        return (num_tokens - 1) // self.profile.page_tokens

    def _known_tokens(self, attempt: Attempt) -> int:
        return attempt.lease.num_known * self.profile.page_tokens

    def _begin_prefill(self, attempt: Attempt) -> None:
        """Looks again, for the prompts computed since it came."""
        attempt.has_begun = True
        self.pages.find_more(attempt.lease, self._max_shared(attempt.num_tokens))
        self._queued_tokens -= attempt.num_uncomputed
        attempt.num_uncomputed = attempt.num_tokens - self._known_tokens(attempt)
        self._queued_tokens += attempt.num_uncomputed
        self._count_cached(attempt)

    def _count_cached(self, attempt: Attempt) -> None:
        num_found = self._known_tokens(attempt)
        self._num_hit_tokens += num_found - attempt.num_cached
        attempt.num_cached = num_found

    def _fill_page(self, attempt: Attempt) -> None:
        """Its last page is full: others may find it, and it needs another one."""
        num_full = attempt.num_tokens // self.profile.page_tokens
        if attempt.lease.chain is not None:
            assert attempt.tokens is not None
            attempt.lease.chain.extend(attempt.tokens, num_full)
            self.pages.remember(attempt.lease, num_full)
        num_missing = num_full + 1 - attempt.lease.num_pages
        if num_missing > 0:
            self.pages.grow(attempt.lease, num_missing)

    # ---- timers

    def _transfer_s(self, attempt: Attempt) -> float:
        assert attempt.ticket is not None
        return self.profile.transfer_s + self.profile.transfer_page_s * attempt.ticket.num_pages

    def _set_timer(self, due_s: float, attempt: Attempt) -> None:
        self._num_timers += 1
        attempt.due_s = due_s
        heapq.heappush(self._timers, (due_s, self._num_timers, attempt))

    def _timer_due(self, attempt: Attempt, now_s: float) -> Sequence[WorkerMessage]:
        key = (attempt.request.request_id, attempt.request.attempt)
        attempt.due_s = None
        if attempt.state in (State.RESERVED, State.COPIED):
            self._drop(key)
            return [Failed(*key, "no word came within the lease", True)]
        if attempt.state is State.COPYING:
            return [self._copied(attempt, now_s)]
        if self.role == "prefill":
            self._drop(key)
            return []
        ticket = attempt.ticket
        assert ticket is not None
        if attempt.lease.chain is not None:
            self.pages.remember(attempt.lease, len(attempt.lease.chain.digests))  # all that was full when it came
        self._decode(attempt)
        return [HandedOff(*key, _num_bytes(ticket), self._transfer_s(attempt))]

    def _is_here(self, attempt: Attempt) -> bool:
        return self._attempts.get((attempt.request.request_id, attempt.request.attempt)) is attempt


def _num_bytes(ticket: HandoffTicket) -> int:
    return ticket.num_pages * ticket.num_layers * ticket.num_kv_heads * ticket.head_bytes
