"""Attempts that move to another mock worker while they decode: both ends of a move.

    source        decoding --freeze--> frozen --abort: it goes on elsewhere--> gone
                                         '-----resume-----> decoding
    destination   adopt ---> copying --transfer time--> copied --extend--> copying ... or reserved --start--> arriving

It follows `workers/engine/scheduling/migrations.py`, but pages are only counted.
"""

from __future__ import annotations

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.workers.interface.engine import AttemptKey, EngineRequestError, Reservation
from slipstream.workers.mock.mock_attempt import MockAttempt, MockState
from slipstream.workers.mock.mock_attempts import MockAttempts
from slipstream.workers.mock.mock_steps import MockSteps


class MockMigrations:
    """`EngineMigrations` of a mock engine."""

    def __init__(self, book: MockAttempts, batch: MockSteps) -> None:
        self._book = book
        self._batch = batch
        self._profile = book.profile

    def extend(self, key: AttemptKey, token_ids: tuple[int, ...], num_room_tokens: int) -> Reservation:
        attempt = self._book.get(key)
        if attempt is None or attempt.state is not MockState.COPIED:
            raise EngineRequestError("request_id", f"{key} is not being copied here")
        attempt.know(token_ids)
        self._book.hold(attempt, self._profile.pages_for(attempt.num_tokens + num_room_tokens))
        return self.wanted(attempt, num_room_tokens)

    def wanted(self, attempt: MockAttempt, num_room_tokens: int) -> Reservation:
        """The pages of the next round."""
        lease, num_full = attempt.lease, (attempt.num_tokens - 1) // self._profile.page_tokens
        first = min(lease.num_known, num_full)
        with_room = min(self._profile.pages_for(attempt.num_tokens + num_room_tokens), lease.num_pages)
        end = with_room if num_room_tokens else num_full
        attempt.state = MockState.RESERVED if num_room_tokens else MockState.COPYING
        return Reservation(attempt.key, attempt.num_cached, first, range(first, end))

    def copied(self, key: AttemptKey) -> None:
        attempt = self._book.get(key)
        assert attempt is not None
        ticket, chain = attempt.ticket, attempt.lease.chain
        assert ticket is not None
        end = ticket.first_page + ticket.num_pages
        if chain is not None and attempt.tokens is not None:
            chain.extend(attempt.tokens, end)
            self._book.pages.remember(attempt.lease, end)
        attempt.state = MockState.COPIED

    def check_ticket(self, key: AttemptKey, ticket: HandoffTicket, freeze: bool) -> None:
        attempt = self._batch.decoding(key)
        if attempt is None:
            raise EngineRequestError("request_id", f"{key} does not decode here")
        if freeze and self._profile.pages_for(attempt.num_tokens - 1) > ticket.first_page + ticket.num_pages:
            raise EngineRequestError("ticket", f"is too short: {key} has {attempt.num_tokens} tokens by now")

    def interrupt(self, key: AttemptKey) -> bool:
        return self._batch.is_in_step(key)

    def freeze(self, key: AttemptKey) -> int:
        attempt = self._batch.decoding(key)
        assert attempt is not None  # `check_ticket` has looked
        self._batch.freeze(attempt)
        return attempt.num_output

    def resume(self, key: AttemptKey) -> None:
        attempt = self._book.get(key)
        if attempt is not None and attempt.state is MockState.FROZEN:
            self._batch.decode(attempt)

    def begin_send(self, key: AttemptKey, ticket: HandoffTicket) -> range:
        return range(ticket.first_page, ticket.first_page + ticket.num_pages)

    def end_send(self, key: AttemptKey) -> None:
        """Nothing is really sent, so no pages had to stay."""
