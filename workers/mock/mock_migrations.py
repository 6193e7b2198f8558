"""Attempts that move to another mock worker while they decode: both ends of a move.

    source        decoding --Migrate(freeze), end of the step--> frozen --Cancel: it goes on elsewhere--> gone
                                                                    '-----Resume--> decoding
    destination   Adopt ---> copying --transfer time--> copied --Extend--> copying ... or reserved --Start--> arriving

It follows `workers/engine/scheduling/migrations.py`, but pages are only counted, and the network is a time in the
profile.
"""

from __future__ import annotations

from slipstream.router.protocol.messages import Adopt, Copied, Extend, Failed, Frozen, Migrate, Reserved, WorkerMessage
from slipstream.workers.mock.attempt_timers import AttemptTimers
from slipstream.workers.mock.mock_attempt import AttemptKey, MockAttempt, MockState
from slipstream.workers.mock.mock_attempts import MockAttempts
from slipstream.workers.mock.mock_steps import MockSteps
from slipstream.workers.transfers.ticket_issuer import TicketIssuer


class MockMigrations:
    def __init__(self, book: MockAttempts, batch: MockSteps, timers: AttemptTimers, tickets: TicketIssuer) -> None:
        self._book = book
        self._batch = batch
        self._profile = book.profile
        self._timers = timers
        self._tickets = tickets

    # ---- destination

    def adopt(self, message: Adopt, now_s: float) -> WorkerMessage:
        attempt = self._book.admit(message.request, MockState.RESERVED, message.num_room_tokens)
        if isinstance(attempt, Failed):
            return attempt
        self._book.count_cached(attempt)
        attempt.source = message.source
        return self._expect(attempt, message.num_room_tokens, now_s)

    def extend(self, message: Extend, now_s: float) -> WorkerMessage | None:
        """The attempt has grown at its source, so the next pages are wanted. None if no attempt here waits for that."""
        attempt = self._book.get((message.request_id, message.attempt))
        if attempt is None or attempt.state is not MockState.COPIED:
            return None
        attempt.know(message.token_ids)
        self._book.hold(attempt, self._profile.pages_for(attempt.num_tokens + message.num_room_tokens))
        return self._expect(attempt, message.num_room_tokens, now_s)

    def _expect(self, attempt: MockAttempt, num_room_tokens: int, now_s: float) -> WorkerMessage:
        """Begins the next round. Full pages arrive by themselves, the last ones once the first token here is known."""
        lease, num_full = attempt.lease, (attempt.num_tokens - 1) // self._profile.page_tokens
        first = min(lease.num_known, num_full)
        end = lease.num_pages if num_room_tokens else num_full
        attempt.ticket = self._tickets.issue(first, end - first)
        attempt.state = MockState.RESERVED if num_room_tokens else MockState.COPYING
        wait_s = self._profile.start_lease_s if num_room_tokens else self._profile.arrival_s(attempt.ticket)
        self._timers.set(now_s + wait_s, attempt)
        return Reserved(*attempt.key, attempt.num_cached, attempt.ticket)

    def copied(self, attempt: MockAttempt, now_s: float) -> WorkerMessage:
        """The pages of a round have arrived that is not the last one."""
        ticket, chain = attempt.ticket, attempt.lease.chain
        assert ticket is not None
        end = ticket.first_page + ticket.num_pages
        if chain is not None and attempt.tokens is not None:
            chain.extend(attempt.tokens, end)
            self._book.pages.remember(attempt.lease, end)
        attempt.state = MockState.COPIED
        self._timers.set(now_s + self._profile.start_lease_s, attempt)
        return Copied(*attempt.key, ticket.transfer_id, attempt.num_sent_bytes, self._profile.arrival_s(ticket))

    # ---- source

    def migrate(self, message: Migrate) -> WorkerMessage | None:
        """Sends an attempt away. This takes no time here, because the profile counts the time at the destination."""
        ticket = message.ticket
        attempt = self._batch.decoding((message.request_id, message.attempt))
        num_pages = self._profile.pages_for(attempt.num_tokens - 1) if attempt is not None else 0
        if attempt is None or (message.freeze and num_pages > ticket.first_page + ticket.num_pages):
            reason = "it does not decode here" if attempt is None else f"it has {attempt.num_tokens} tokens by now"
            return Failed(message.request_id, message.to_attempt, reason, True)
        if not message.freeze:
            return None
        if self._batch.is_in_step(attempt):
            attempt.stops = True
            return None
        return self.freeze(attempt)

    def freeze(self, attempt: MockAttempt) -> WorkerMessage:
        self._batch.freeze(attempt)
        return Frozen(*attempt.key, attempt.num_output)

    def resume(self, key: AttemptKey, now_s: float) -> None:
        """The move is off."""
        attempt = self._book.get(key)
        if attempt is None:
            return
        attempt.stops = False
        if attempt.state is MockState.FROZEN:
            self._batch.decode(attempt)
            self._batch.begin_step(now_s)
