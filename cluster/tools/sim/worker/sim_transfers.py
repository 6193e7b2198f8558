"""The pages of simulated workers on their way over the network.

Those of a prompt begin to leave with its first chunk, layer by layer, while the next layers are computed. The last
layer of the last chunk goes last. Those of a sequence that moves while it decodes leave all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.cluster.tools.sim.engine.sim_attempt import Key, Peer, SimAttempt
from slipstream.cluster.tools.sim.hardware.network import Network, Nic, Transfer
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.workers.interface.engine import Reservation
from slipstream.workers.interface.page_transfers import TransferOutcome


@dataclass(slots=True, eq=False)
class _Send:
    """`transfer` is None while nothing leaves."""

    ticket: HandoffTicket
    peer: Peer | None
    is_prompt: bool
    transfer: Transfer | None = None
    tail_bytes: float = 0.0


class TransferOwner(Protocol):
    """The worker whose pages they are."""

    nic: Nic
    attempts: dict[Key, SimAttempt]
    page_bytes: int

    @property
    def network(self) -> Network: ...

    def find_peer(self, peer: PeerId) -> Peer | None:
        """Another worker; None if it is dead."""

    def transfer_ended(self, outcome: TransferOutcome) -> None: ...

    def flush(self) -> None:
        """What has been said goes to the router."""


class SimTransfers:
    """`PageTransfers` of a simulated worker. The outcomes of calls wait in `take_ended`; the others go to the owner."""

    total_checksum_failures = 0

    def __init__(
        self, owner: TransferOwner, clock: VirtualClock, page_tokens: int, num_layers: int, max_step_tokens: int
    ) -> None:
        self._owner = owner
        self._clock = clock
        self._page_tokens = page_tokens
        self._num_layers = num_layers
        self._max_step_tokens = max_step_tokens
        self._sends: dict[TransferKey, _Send] = {}
        self._sources: dict[TransferKey, Peer | None] = {}  # of pages that are expected
        self._ended: list[TransferOutcome] = []

    @property
    def num_active(self) -> int:
        return len(self._sends) + len(self._sources)

    def knows(self, transfer: TransferKey) -> bool:
        return transfer in self._sends or transfer in self._sources

    def expect(self, ticket: HandoffTicket, reservation: Reservation, source: PeerId, source_tp: int) -> None:
        attempt = self._owner.attempts[reservation.key]
        attempt.ticket = ticket
        if attempt.is_whole or ticket.num_pages:
            self._sources[ticket.key] = self._owner.find_peer(source)
        else:
            self._ended.append(TransferOutcome(ticket.key, None, 0, 0.0, is_cancelled=False))

    def landed(self, ticket: HandoffTicket, seconds: float) -> bool:
        """All pages of a ticket have arrived. False: nothing here waits for them any more."""
        if ticket.key not in self._sources:
            return False
        del self._sources[ticket.key]
        num_bytes = ticket.num_pages * self._owner.page_bytes
        self._owner.transfer_ended(TransferOutcome(ticket.key, None, num_bytes, seconds, is_cancelled=False))
        return True

    def add_prompt(self, attempt: SimAttempt, ticket: HandoffTicket) -> None:
        """The pages of this prompt are to be sent; they leave from `begin_prompt` on."""
        attempt.ticket = ticket
        self._sends[ticket.key] = _Send(ticket, self._owner.find_peer(ticket.destination), True)

    def begin_prompt(self, attempt: SimAttempt) -> None:
        """The first chunk of the prompt is being computed."""
        ticket = attempt.ticket
        assert ticket is not None
        send = self._sends[ticket.key]
        if not ticket.num_pages or send.peer is None:
            return
        last_chunk = min((attempt.num_uncomputed - 1) % self._max_step_tokens + 1, attempt.num_known)
        num_bytes = ticket.num_pages * self._owner.page_bytes
        share = min(last_chunk / (ticket.num_pages * self._page_tokens), 1.0)
        send.tail_bytes = num_bytes * share / self._num_layers
        self._open(send, num_bytes - send.tail_bytes)

    def finish_prompt(self, attempt: SimAttempt) -> None:
        """The prompt is computed: the rest of its pages can leave."""
        assert attempt.ticket is not None
        send = self._sends[attempt.ticket.key]
        if send.transfer is not None:
            self._owner.network.finish(send.transfer, send.tail_bytes)
        else:
            self._clock.at(self._clock.now_s, self._nothing_to_send, send)

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        send = self._sends[ticket.key] = _Send(ticket, self._owner.find_peer(ticket.destination), False)
        self._owner.network.finish(self._open(send, float(ticket.num_pages * self._owner.page_bytes)), 0.0)

    def cancel(self, transfer: TransferKey) -> None:
        if self.knows(transfer):
            self._give_up(transfer, "cancelled", is_cancelled=True)

    def peer_lost(self, peer: PeerId) -> None:
        """Pages that were to come from it will not come, and it gets no more."""
        others = [(key, send.peer) for key, send in self._sends.items()]
        others += self._sources.items()
        for key, other in others:
            if other is not None and other.hello.worker == peer:
                self._give_up(key, f"{peer.name} is gone")

    def abort(self) -> None:
        """The worker is dead."""
        for send in self._sends.values():
            if send.transfer is not None:
                self._owner.network.abort(send.transfer)
        self._sends.clear()
        self._sources.clear()

    def take_ended(self) -> list[TransferOutcome]:
        """The outcomes that calls have caused since the last time."""
        ended, self._ended = self._ended, []
        return ended

    def _open(self, send: _Send, head_bytes: float) -> Transfer:
        assert send.peer is not None
        owner = self._owner
        send.transfer = owner.network.open(owner.nic, send.peer.nic, head_bytes, self._sent, self._unreachable, send)
        return send.transfer

    def _nothing_to_send(self, send: _Send) -> None:
        if send.ticket.key in self._sends:
            self._sent(send, 0.0)

    def _sent(self, send: _Send, seconds: float) -> None:
        """The last page has arrived: its room here is free, and the receiver may continue."""
        owner, ticket = self._owner, send.ticket
        del self._sends[ticket.key]
        num_bytes = ticket.num_pages * owner.page_bytes
        owner.transfer_ended(TransferOutcome(ticket.key, None, num_bytes, seconds, is_cancelled=False, is_sent=True))
        if send.peer is not None and send.peer.is_alive:
            send.peer.landed(ticket, seconds)
        if send.is_prompt:
            owner.flush()

    def _unreachable(self, send: _Send) -> None:
        """No page has got through for too long."""
        del self._sends[send.ticket.key]
        name = send.peer.hello.worker.name if send.peer is not None else "the other end"
        failure = f"{name} is out of reach"
        self._owner.transfer_ended(
            TransferOutcome(send.ticket.key, failure, 0, 0.0, is_cancelled=False, is_sent=True, is_unreachable=True)
        )
        self._owner.flush()

    def _give_up(self, transfer: TransferKey, failure: str, *, is_cancelled: bool = False) -> None:
        send = self._sends.pop(transfer, None)
        if send is None:
            del self._sources[transfer]
        elif send.transfer is not None:
            self._owner.network.abort(send.transfer)
        self._ended.append(TransferOutcome(transfer, failure, 0, 0.0, is_cancelled, is_sent=send is not None))
