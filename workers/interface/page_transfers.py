"""What a worker asks of whatever moves its pages to and from other workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.workers.interface.engine import Reservation


@dataclass(frozen=True, slots=True)
class TransferOutcome:
    """The end of a transfer: nothing touches its pages any more. The bytes are those of all ranks, the seconds those of
    the slowest. `is_cancelled`: it was given up before anything went wrong. `is_sent`: we sent the pages rather than
    received them. `is_unreachable`: at least one rank could not reach its peer."""

    transfer: TransferKey
    failure: str | None
    num_bytes: int
    seconds: float
    is_cancelled: bool
    is_sent: bool = False
    is_unreachable: bool = False


class PageTransfers(Protocol):
    """Every transfer that begins ends in exactly one `TransferOutcome`, which comes after the call that caused it has
    returned. Calls do not wait for the network. The sends of `Engine.add_prefill` are begun by the engine."""

    @property
    def num_active(self) -> int: ...

    @property
    def total_checksum_failures(self) -> int: ...

    def knows(self, transfer: TransferKey) -> bool:
        """Whether the transfer has begun and not ended."""

    def expect(self, ticket: HandoffTicket, reservation: Reservation, source: PeerId, source_tp: int) -> None:
        """Pages of the reservation will come from `source`, with `source_tp` ranks, under this ticket."""

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        """These pages, which are complete, go to the ticket's destination."""

    def cancel(self, transfer: TransferKey) -> None:
        """Ends a transfer. Its outcome still follows. Unknown and ended ones are ignored."""

    def peer_lost(self, peer: PeerId) -> None:
        """A worker is gone: nothing comes from it, and nothing reaches it."""
