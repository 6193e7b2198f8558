"""The attempts of a simulated worker and their pages; `SimEngine` makes the steps."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.cluster.tools.sim.engine.page_allocator import PageAllocator
from slipstream.cluster.tools.sim.engine.page_names import PageNames
from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, Key, SimAttempt
from slipstream.cluster.tools.sim.engine.sim_engine import SimEngine
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerRoleProfile
from slipstream.cluster.tools.sim.worker.sim_migrations import SimMigrations
from slipstream.cluster.tools.sim.worker.sim_transfers import SimTransfers
from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import EngineRequest
from slipstream.workers.interface.engine import Capacity, NoRoomError, PageUse, Reservation
from slipstream.workers.mock.mock_pages import MockPages

Facts = Callable[[str], tuple[int, PageNames | None]]  # of a request: see `Environment.facts`


class AttemptEngine:
    """`Engine` of a simulated worker."""

    def __init__(
        self,
        attempts: dict[Key, SimAttempt],
        allocator: PageAllocator,
        steps: SimEngine,
        transfers: SimTransfers,
        migrations: SimMigrations,
        facts: Facts,
        role: WorkerRoleProfile,
        max_model_len: int,
    ) -> None:
        self.migrations = migrations
        self._attempts = attempts
        self._allocator = allocator
        self._steps = steps
        self._transfers = transfers
        self._facts = facts
        self._role = role
        self._most_tokens = min(max_model_len, allocator.prefix_cache.num_pages * allocator.page_tokens)
        # Pages that answers take before the next credits.
        self._most_growth = 0 if allocator.reserves_output else 1 + allocator.prefix_cache.num_pages // 64

    def add(self, request: EngineRequest) -> None:
        attempt = self._attempts.get((request.request_id, request.attempt)) or self._admit_here(request)
        self._steps.compute(attempt)

    def add_prefill(self, request: EngineRequest, ticket: HandoffTicket) -> None:
        attempt = self._admit_here(request)
        self._transfers.add_prompt(attempt, ticket)
        self._steps.compute(attempt)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        attempt = self._admit(request, AttemptState.RESERVED, 1)
        if attempt is None or attempt.lease is None:
            return None
        first, end = attempt.lease.num_known, -(-attempt.num_known // self._allocator.page_tokens)
        return Reservation(attempt.key, attempt.num_cached, first, range(first, end))

    def adopt(self, request: EngineRequest, num_room_tokens: int) -> Reservation | None:
        attempt = self._admit(request, AttemptState.RESERVED, max(num_room_tokens, 1))
        if attempt is None or attempt.lease is None:
            return None
        attempt.is_adopted = True
        attempt.num_landed_pages = attempt.lease.num_known
        return self.migrations.wanted(attempt, num_room_tokens)

    def start(self, key: Key, token_ids: tuple[int, ...]) -> None:
        attempt = self._attempts[key]
        attempt.has_started = True
        attempt.num_reported += len(token_ids)
        if attempt.has_landed:
            self._steps.decode(attempt)

    def land(self, key: Key) -> None:
        attempt = self._attempts[key]
        attempt.has_landed = True
        self._allocator.remember(attempt, attempt.num_known)
        if attempt.has_started:
            self._steps.decode(attempt)

    def abort(self, key: Key, keep_pages: bool = False) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._steps.drop(attempt)
            attempt.state = AttemptState.GONE
            if not keep_pages:
                self.end(attempt)

    def release(self, key: Key) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            self.end(attempt)

    def end(self, attempt: SimAttempt) -> None:
        """The attempt, which the steps do not have any more, gives its pages back."""
        del self._attempts[attempt.key]
        self._allocator.release(attempt, has_ended=True)
        attempt.state = AttemptState.GONE

    def capacity(self) -> Capacity:
        role, steps = self._role, self._steps
        num_decoding = len(steps.batch)
        slots = role.max_slots - len(self._attempts)
        pages = self._allocator.num_free - min(num_decoding, self._most_growth)
        tokens = role.max_queued_tokens - steps.prompts.num_tokens - num_decoding
        return Capacity(slots if slots > 0 else 0, pages if pages > 0 else 0, tokens if tokens > 0 else 0)

    def set_page_limit(self, num_pages: int) -> None:
        self._allocator.prefix_cache.set_limit(num_pages)
        self._steps.pages_changed()

    def page_use(self) -> PageUse:
        """Those wait for pages that were preempted: new ones are refused if there are none."""
        pages, num_used = self._allocator.prefix_cache, self._allocator.num_used
        page_tokens = self._allocator.page_tokens
        preempted = [attempt for attempt in self._attempts.values() if attempt.lease is None]
        num_wanted = sum(attempt.num_known // page_tokens + 1 for attempt in preempted)
        return PageUse(max(pages.num_held, num_used), num_used, pages.num_cached, num_wanted)

    @property
    def prefix_cache(self) -> MockPages:
        return self._allocator.prefix_cache

    def _admit_here(self, request: EngineRequest) -> SimAttempt:
        attempt = self._admit(request, AttemptState.QUEUED, 1)
        if attempt is None:
            raise NoRoomError("no pages")
        return attempt

    def _admit(self, request: EngineRequest, state: AttemptState, num_room_tokens: int) -> SimAttempt | None:
        """A new attempt with its pages; None if there are too few."""
        num_known = (len(request.prompt_ids) + len(request.output_ids)) // 4
        stop_at, names = self._facts(request.request_id)
        num_reported = len(request.output_ids) // 4
        if self._allocator.reserves_output:
            most_tokens = min(len(request.prompt_ids) // 4 + request.sampling.max_tokens, self._most_tokens)
            num_room_tokens = max(num_room_tokens, most_tokens - num_known)
        lease = self._allocator.lease(names, num_known, num_room_tokens)
        if lease is None:
            return None
        stop_at = max(stop_at, num_reported + 1)
        attempt = SimAttempt(
            request.request_id, request.attempt, state, num_known, num_reported, num_reported, stop_at, lease, names
        )
        attempt.retention = request.retention
        attempt.num_cached = lease.num_known * self._allocator.page_tokens
        self._attempts[attempt.key] = attempt
        return attempt
