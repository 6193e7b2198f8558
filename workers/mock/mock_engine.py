"""An engine without a model: pages that are counted, steps that take the time given by a profile, made-up tokens.

Tokens are a function of the prompt and the position alone (`output_policy`), so a client can check whether an answer
that moved between workers is the one it would have got otherwise. By default they follow from a hash and do not form
text; then requests with a grammar are refused, as by a real engine without a tokenizer, but for those with tools, or
with a grammar behind reasoning, of which it is ignored. The answers of a script are text, and ignore all grammars.
"""

from __future__ import annotations

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import EngineRequest, Role
from slipstream.workers.interface.engine import (
    AttemptKey,
    Capacity,
    EngineRequestError,
    EngineStats,
    NoRoomError,
    PageUse,
    Reservation,
)
from slipstream.workers.mock.mock_attempt import MockAttempt, MockState
from slipstream.workers.mock.mock_attempts import MockAttempts
from slipstream.workers.mock.mock_migrations import MockMigrations
from slipstream.workers.mock.mock_pages import MockPages
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_steps import MockSteps
from slipstream.workers.mock.mock_transfers import MockTransfers
from slipstream.workers.mock.output_policy import HashTokens, OutputPolicy
from slipstream.workers.telemetry.step_times import StepSampler


class MockEngine:
    """`Engine` of a mock worker, with its `transfers`. Steps begin and end in its `batch`."""

    def __init__(
        self, profile: MockProfile, role: Role, model: str, steps: StepSampler, policy: OutputPolicy | None = None
    ) -> None:
        self._profile = profile
        policy = policy or HashTokens(profile.vocab_size)
        self.book = MockAttempts(profile, model, profile.reserves_output and role == "decode", policy)
        self.transfers = MockTransfers(self.book, role)
        self.batch = MockSteps(self.book, self.transfers, role, steps)
        self.migrations = MockMigrations(self.book, self.batch)

    def add(self, request: EngineRequest) -> None:
        reserved = self.book.get((request.request_id, request.attempt))
        if reserved is None or reserved.state is not MockState.RESERVED:
            reserved = self._admit(request)
        self.batch.enqueue(reserved)

    def add_prefill(self, request: EngineRequest, ticket: HandoffTicket) -> None:
        attempt = self._admit(request)
        self.transfers.add(attempt, ticket)
        self.batch.enqueue(attempt)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        attempt = self.book.admit(request, MockState.RESERVED)
        if attempt is None:
            return None
        self.book.count_cached(attempt)
        wanted = range(attempt.lease.num_known, self._profile.pages_for(attempt.num_tokens))
        return Reservation(attempt.key, attempt.num_cached, wanted.start, wanted)

    def adopt(self, request: EngineRequest, num_room_tokens: int) -> Reservation | None:
        attempt = self.book.admit(request, MockState.RESERVED, num_room_tokens)
        if attempt is None:
            return None
        attempt.is_adopted = True
        self.book.count_cached(attempt)
        return self.migrations.wanted(attempt, num_room_tokens)

    def start(self, key: AttemptKey, token_ids: tuple[int, ...]) -> None:
        attempt = self.book.get(key)
        if attempt is None or attempt.state is not MockState.RESERVED:
            return
        if attempt.num_output + len(token_ids) >= attempt.max_output:
            raise EngineRequestError("token_ids", f"{key} has nothing left to generate")
        attempt.know(token_ids)
        self.transfers.begin(attempt)

    def land(self, key: AttemptKey) -> None:
        attempt = self.book.get(key)
        assert attempt is not None
        if attempt.lease.chain is not None:  # all that was full when it came
            self.book.pages.remember(attempt.lease, len(attempt.lease.chain.digests))
        self.batch.decode(attempt)

    def release(self, key: AttemptKey) -> None:
        self.abort(key)

    def abort(self, key: AttemptKey, keep_pages: bool = False) -> None:
        attempt = self.book.get(key)
        if attempt is None:
            return
        self.batch.drop(attempt)
        if keep_pages:
            attempt.state = MockState.DRAINING
        else:
            self.book.remove(attempt)

    def _admit(self, request: EngineRequest) -> MockAttempt:
        attempt = self.book.admit(request, MockState.QUEUED)
        if attempt is None:
            raise NoRoomError("no pages")
        return attempt

    def capacity(self) -> Capacity:
        profile = self._profile
        return Capacity(
            max(0, profile.max_slots - len(self.book)),
            max(0, self.book.pages.num_free),
            max(0, profile.max_queued_tokens - self.batch.num_queued_tokens),
        )

    def page_counts(self) -> dict[str, int]:
        """Pages that are overdrawn are active, too."""
        pages = self.book.pages
        num_used, num_cached = pages.num_used, pages.num_cached
        num_withheld = max(0, self._profile.num_pages - pages.num_held)
        return {
            "free": max(0, pages.limit - num_used - num_cached),
            "cached": num_cached,
            "active": num_used,
            **({"withheld": num_withheld} if num_withheld else {}),
        }

    def set_page_limit(self, num_pages: int) -> None:
        self.book.pages.set_limit(num_pages)

    def page_use(self) -> PageUse:
        """Nothing waits for pages: what has none is refused."""
        pages = self.book.pages
        return PageUse(pages.num_held, pages.num_used, pages.num_cached, 0)

    def stats(self) -> EngineStats:
        batch, book = self.batch, self.book
        return EngineStats(
            num_running=batch.num_decoding,
            num_waiting=len(book) - batch.num_decoding,
            total_steps=batch.counts.num_steps,
            total_computed_tokens=batch.counts.num_tokens,
            total_sampled_tokens=batch.num_sampled_tokens,
            total_preemptions=0,
            total_prefix_queried_tokens=book.num_queried_tokens,
            total_prefix_hit_tokens=book.num_hit_tokens,
            total_step_sequences=batch.counts.num_sequences,
            steps_by_size=tuple(batch.counts.by_size()),
        )

    @property
    def prefix_cache(self) -> MockPages:
        return self.book.pages
