"""Treats the transfer agents of all ranks as one: a command goes to every rank, and their outcomes become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.workers.interface.engine import Reservation
from slipstream.workers.interface.page_transfers import TransferOutcome


class RankTransfers(Protocol):
    """The transfer agent of one rank, in this process or behind a control link. Calls do not wait for the network."""

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> None: ...

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None: ...

    def cancel(self, transfer: TransferKey) -> None: ...

    def peer_lost(self, peer: PeerId) -> None: ...

    def begin_epoch(self, worker: PeerId) -> None: ...


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """A rank has released its part of a transfer. `failure` is None if all its bytes were sent or arrived intact.
    `total_checksum_failures` counts all that the rank has seen so far. `is_unreachable`: its peer could not be reached,
    or the link to it broke."""

    transfer: TransferKey
    failure: str | None
    num_bytes: int = 0
    seconds: float = 0.0
    total_checksum_failures: int = 0
    is_unreachable: bool = False


@dataclass(slots=True)
class _Tally:
    ranks: set[int]  # those that have not released it yet
    is_sent: bool = False
    cancelled: bool = False
    was_sound: bool = False  # whether nothing had failed when it was cancelled
    failure: str | None = None
    is_unreachable: bool = False
    num_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class GroupTransfers:
    """`PageTransfers` of a group: the outcome of a transfer comes after all ranks have released it. The first rank
    that fails takes the others with it."""

    ranks: Sequence[RankTransfers]
    _tallies: dict[TransferKey, _Tally] = field(default_factory=dict)
    _checksum_failures: Counter[int] = field(default_factory=Counter)  # by rank

    @property
    def total_checksum_failures(self) -> int:
        return self._checksum_failures.total()

    @property
    def active(self) -> Collection[TransferKey]:
        return self._tallies.keys()

    @property
    def num_active(self) -> int:
        return len(self._tallies)

    def expect(self, ticket: HandoffTicket, reservation: Reservation, source: PeerId, source_tp: int) -> None:
        self._tallies[ticket.key] = _Tally(set(range(len(self.ranks))))
        for rank in self.ranks:
            rank.expect(ticket, reservation.page_ids, source, source_tp)

    def sending(self, transfer: TransferKey) -> None:
        """All ranks will begin to send in the step that is about to run. (Each finds what to send in the step's
        plan.)"""
        self._tallies[transfer] = _Tally(set(range(len(self.ranks))), is_sent=True)

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        """Makes all ranks send these complete pages, between two steps."""
        self.sending(ticket.key)
        for rank in self.ranks:
            rank.send(ticket, page_ids)

    def knows(self, transfer: TransferKey) -> bool:
        return transfer in self._tallies

    def cancel(self, transfer: TransferKey) -> None:
        """Asks every rank to release a transfer. Its outcome still follows. Unknown and ended ones are ignored."""
        tally = self._tallies.get(transfer)
        if tally is None or tally.cancelled:
            return
        tally.cancelled = True
        tally.was_sound = tally.failure is None
        for rank in tally.ranks:
            self.ranks[rank].cancel(transfer)

    def peer_lost(self, peer: PeerId) -> None:
        for rank in self.ranks:
            rank.peer_lost(peer)

    def begin_epoch(self, worker: PeerId) -> None:
        """The group is `worker` from now on. Nothing may be active."""
        assert not self._tallies
        for rank in self.ranks:
            rank.begin_epoch(worker)

    def ended(self, rank: int, outcome: RankOutcome) -> TransferOutcome | None:
        """Rank `rank` has released it. Returns the group's outcome if it was the last."""
        if outcome.total_checksum_failures > self._checksum_failures[rank]:
            self._checksum_failures[rank] = outcome.total_checksum_failures
        tally = self._tallies.get(outcome.transfer)
        if tally is None or rank not in tally.ranks:
            return None
        tally.ranks.remove(rank)
        tally.num_bytes += outcome.num_bytes
        tally.seconds = max(tally.seconds, outcome.seconds)
        if outcome.failure is not None and tally.failure is None:
            tally.failure = outcome.failure if len(self.ranks) == 1 else f"rank {rank}: {outcome.failure}"
        tally.is_unreachable |= outcome.is_unreachable
        if tally.failure is not None:
            self.cancel(outcome.transfer)
        if tally.ranks:
            return None
        del self._tallies[outcome.transfer]
        return TransferOutcome(
            outcome.transfer,
            tally.failure,
            tally.num_bytes,
            tally.seconds,
            tally.was_sound,
            tally.is_sent,
            tally.is_unreachable,
        )
