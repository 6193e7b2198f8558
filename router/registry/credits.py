"""How much more work a worker can take on, as far as the router knows.

A worker's `Credits` say what was free after it had counted the message `ack_seq`. The ledger subtracts what was sent
after that message, and what is promised but not sent yet (a prefill that waits for its pages to be reserved):

    free = reported - sum(spent with seq > ack_seq) - sum(held)

Reports are absolute, so a wrong guess of a cost matters only until the next report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.router.protocol.messages import Credits


class Charge(NamedTuple):
    """What one piece of work costs a worker."""

    slots: int = 0
    pages: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Outstanding:
    slots: int = 0
    pages: int = 0
    tokens: int = 0

    def add(self, charge: Charge) -> None:
        self.slots += charge.slots
        self.pages += charge.pages
        self.tokens += charge.tokens

    def subtract(self, charge: Charge) -> None:
        self.slots -= charge.slots
        self.pages -= charge.pages
        self.tokens -= charge.tokens


class CreditLedger:
    """The credits of one worker's connection: none before its first report. `on_change` is called whenever the free
    amounts change."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] | None = None
        self._reported = Credits(0, 0, 0, 0)
        self._last_seq = 0
        self._spent: deque[tuple[int, Charge]] = deque()
        self._held: dict[str, Charge] = {}
        self._outstanding = _Outstanding()

    @property
    def free_slots(self) -> int:
        return self._reported.free_slots - self._outstanding.slots

    @property
    def free_pages(self) -> int:
        return self._reported.free_pages - self._outstanding.pages

    @property
    def free_tokens(self) -> int:
        return self._reported.free_tokens - self._outstanding.tokens

    @property
    def num_unacknowledged(self) -> int:
        return len(self._spent)

    @property
    def held(self) -> frozenset[str]:
        """Ids of the requests that a charge is held for."""
        return frozenset(self._held)

    def spend(self, charge: Charge) -> int:
        """Charges for a message that is being sent and returns its `seq`."""
        self._last_seq += 1
        self._spent.append((self._last_seq, charge))
        self._outstanding.add(charge)
        if self.on_change is not None:
            self.on_change()
        return self._last_seq

    def hold(self, request_id: str, charge: Charge) -> None:
        """Sets a charge aside for a message that will be sent later. At most one per request."""
        assert request_id not in self._held
        self._held[request_id] = charge
        self._outstanding.add(charge)
        if self.on_change is not None:
            self.on_change()

    def release(self, request_id: str) -> Charge | None:
        """Gives a held charge back; None if there was none."""
        charge = self._held.pop(request_id, None)
        if charge is not None:
            self._outstanding.subtract(charge)
            if self.on_change is not None:
                self.on_change()
        return charge

    def exhaust(self) -> None:
        """The worker refused what its last report promised: nothing counts as free until its next report."""
        self._reported = Credits(self._reported.ack_seq, 0, 0, 0)
        if self.on_change is not None:
            self.on_change()

    def report(self, credits: Credits) -> None:
        """Takes a report. Raises ValueError if its `ack_seq` goes back or acknowledges a message never sent."""
        if not self._reported.ack_seq <= credits.ack_seq <= self._last_seq:
            raise ValueError(
                f"ack_seq {credits.ack_seq} is not between the last one, {self._reported.ack_seq}, "
                f"and the last message sent, {self._last_seq}"
            )
        self._reported = credits
        while self._spent and self._spent[0][0] <= credits.ack_seq:
            self._outstanding.subtract(self._spent.popleft()[1])
        if self.on_change is not None:
            self.on_change()

    def check_integrity(self) -> None:
        """Raises AssertionError if the running sum is not the sum of its parts."""
        total = _Outstanding()
        for _, charge in self._spent:
            total.add(charge)
        for charge in self._held.values():
            total.add(charge)
        assert total == self._outstanding, f"{total} != {self._outstanding}"
