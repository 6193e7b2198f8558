"""Sequences that move to another simulated worker while they decode: both ends of it.

    source        decoding --begin_send: full pages leave, and it decodes on--> decoding
                  decoding --interrupt, end of the step--> stopped --freeze--> frozen --abort--> gone, it goes on
                  elsewhere
                                                                                 '-----resume--> decoding
    destination   reserved --pages: copied--> reserved --extend ... pages: land, start--> decoding

As in `workers/engine/scheduling/migrations.py`, with pages that are only counted. A sequence of T tokens has the KV of
T - 1.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.cluster.tools.sim.engine.page_allocator import PageAllocator
from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, Key, SimAttempt
from slipstream.cluster.tools.sim.engine.sim_engine import SimEngine
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.workers.interface.engine import EngineRequestError, Reservation


class SimMigrations:
    """`EngineMigrations` of a simulated worker."""

    def __init__(
        self,
        attempts: dict[Key, SimAttempt],
        allocator: PageAllocator,
        steps: SimEngine,
        find_peer: Callable[[PeerId], object | None],
    ) -> None:
        self._attempts = attempts
        self._allocator = allocator
        self._steps = steps
        self._find_peer = find_peer

    def extend(self, key: Key, token_ids: tuple[int, ...], num_room_tokens: int) -> Reservation | None:
        attempt, allocator = self._attempts[key], self._allocator
        attempt.num_reported += len(token_ids)
        num_tokens = attempt.num_tokens + max(num_room_tokens, 1)
        if allocator.num_missing(attempt, num_tokens) > allocator.num_free:
            return None
        allocator.hold(attempt, num_tokens)
        return self.wanted(attempt, num_room_tokens)

    def wanted(self, attempt: SimAttempt, num_room_tokens: int) -> Reservation:
        """Full pages only, or all that there will be when the source stands still."""
        assert attempt.lease is not None
        attempt.is_whole = num_room_tokens > 0
        page_tokens = self._allocator.page_tokens
        with_room = min(-(-(attempt.num_tokens + num_room_tokens) // page_tokens), attempt.lease.num_pages)
        end = with_room if attempt.is_whole else (attempt.num_tokens - 1) // page_tokens
        first = min(attempt.num_landed_pages, end)
        return Reservation(attempt.key, attempt.num_cached, first, range(first, end))

    def copied(self, key: Key) -> None:
        attempt = self._attempts[key]
        assert attempt.ticket is not None
        if attempt.ticket.num_pages:
            attempt.num_landed_pages = attempt.ticket.first_page + attempt.ticket.num_pages
            self._allocator.remember(attempt, attempt.num_landed_pages * self._allocator.page_tokens)

    def check_ticket(self, key: Key, ticket: HandoffTicket, freeze: bool) -> None:
        attempt = self._attempts.get(key)
        if attempt is None or attempt.state not in (AttemptState.DECODING, AttemptState.STOPPED):
            raise EngineRequestError("request_id", "it does not decode here")
        if self._find_peer(ticket.destination) is None:
            raise EngineRequestError("ticket", f"{ticket.destination.name} is not there")
        end = (ticket.first_page + ticket.num_pages) * self._allocator.page_tokens
        if attempt.state is AttemptState.STOPPED and attempt.num_tokens - 1 > end:
            raise EngineRequestError("ticket", f"is too short: it has {attempt.num_tokens} tokens by now")

    def interrupt(self, key: Key) -> bool:
        attempt = self._attempts[key]
        if attempt.state is AttemptState.STOPPED:
            return False
        self._steps.stop_at_step_end(attempt)
        return True

    def freeze(self, key: Key) -> int:
        attempt = self._attempts[key]
        attempt.state = AttemptState.FROZEN
        return attempt.num_reported

    def resume(self, key: Key) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._steps.go_on(attempt)
            if attempt.state is AttemptState.FROZEN:
                self._steps.decode(attempt)

    def begin_send(self, key: Key, ticket: HandoffTicket) -> range:
        return range(ticket.first_page, ticket.first_page + ticket.num_pages)

    def end_send(self, key: Key) -> None:
        """Pages are only counted, so none had to stay."""
