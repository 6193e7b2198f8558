"""Pages on their way to and from a mock worker: nothing is sent, and their arrival is a time of the profile.

The pages of a prompt arrive so long after the first token is known, which is when a real prefill worker has sent the
last of them; those of a sequence that is being copied so long after they were asked for. What a sequence that moves
away sends takes no time here, because the time counts at its destination.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.router.protocol.messages import Role
from slipstream.workers.interface.engine import Reservation
from slipstream.workers.interface.page_transfers import TransferOutcome
from slipstream.workers.mock.attempt_timers import AttemptTimers
from slipstream.workers.mock.mock_attempt import MockAttempt, MockState
from slipstream.workers.mock.mock_attempts import MockAttempts


class MockTransfers:
    """`PageTransfers` of a mock worker. `now_s` is the time of the last input; `take_ended` has the outcomes."""

    total_checksum_failures = 0

    def __init__(self, book: MockAttempts, role: Role) -> None:
        self.now_s = 0.0
        self.timers = AttemptTimers()
        self._book = book
        self._profile = book.profile
        self._is_sender = role == "prefill"
        self._attempts: dict[TransferKey, MockAttempt] = {}
        self._ended: list[TransferOutcome] = []

    @property
    def num_active(self) -> int:
        return len(self._attempts)

    def knows(self, transfer: TransferKey) -> bool:
        return transfer in self._attempts

    def expect(self, ticket: HandoffTicket, reservation: Reservation, source: PeerId, source_tp: int) -> None:
        attempt = self._book.get(reservation.key)
        assert attempt is not None
        self.add(attempt, ticket)
        if attempt.is_adopted:
            attempt.source = source
        is_copy = attempt.state is MockState.COPYING
        wait_s = self._profile.arrival_s(ticket) if is_copy else self._profile.start_lease_s
        self.timers.set(self.now_s + wait_s, attempt)

    def add(self, attempt: MockAttempt, ticket: HandoffTicket) -> None:
        """The ticket is for pages of this attempt; they wait for `begin`."""
        attempt.ticket = ticket
        self._attempts[ticket.key] = attempt

    def begin(self, attempt: MockAttempt) -> None:
        """The attempt's first token is known: its pages are on their way, in or out."""
        assert attempt.ticket is not None
        attempt.state = MockState.ARRIVING
        self.timers.set(self.now_s + self._profile.arrival_s(attempt.ticket), attempt)

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        self._ended.append(TransferOutcome(ticket.key, None, 0, 0.0, is_cancelled=False, is_sent=True))

    def cancel(self, transfer: TransferKey) -> None:
        attempt = self._attempts.get(transfer)
        if attempt is not None:
            self._end(attempt, "cancelled", is_cancelled=True)

    def peer_lost(self, peer: PeerId) -> None:
        """Pages of a prompt that were to come from it are only given up by the router or with their lease."""
        for attempt in self._book:
            ticket = attempt.ticket
            if ticket is not None and ticket.key in self._attempts:
                other = ticket.destination if self._is_sender else attempt.source
                if other == peer:
                    self._end(attempt, f"{peer.name} is gone")

    def advance(self, now_s: float) -> None:
        """Ends what is due by now."""
        self.now_s = now_s
        while (attempt := self.timers.pop_due(self.now_s)) is not None:
            is_late = attempt.state is MockState.RESERVED
            self._end(attempt, f"no start within {self._profile.start_lease_s:g} s" if is_late else None)

    def take_ended(self) -> list[TransferOutcome]:
        """The outcomes since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end(self, attempt: MockAttempt, failure: str | None, *, is_cancelled: bool = False) -> None:
        ticket = attempt.ticket
        assert ticket is not None
        del self._attempts[ticket.key]
        attempt.due_s = None
        num_bytes, seconds = (attempt.num_sent_bytes, self._profile.arrival_s(ticket)) if failure is None else (0, 0.0)
        self._ended.append(TransferOutcome(ticket.key, failure, num_bytes, seconds, is_cancelled, self._is_sender))
