"""The links between hosts: KV pages on their way share what a network card has to give.

Each host sends and receives at its card's bandwidth, both at once. Of the transfers that a card has, each gets the same
share; a transfer goes at the smaller of its two shares. Transfers within a host take its memory's way, which counts as
a card of its own with the same bandwidth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock

Done = Callable[[Any, float], object]
Lost = Callable[[Any], object]


class Transfer:
    """Pages from one host to another. `head` bytes go while the prompt is computed; once `finish` has announced the
    last ones and all are through, `done` is called with `what` and the seconds since the first byte. Where nothing gets
    through for too long it is over, and `lost` is called with `what`."""

    __slots__ = (
        "begun_s",
        "done",
        "dst",
        "is_aborted",
        "is_complete",
        "is_over",
        "left_bytes",
        "lost",
        "rate",
        "since_s",
        "src",
        "turn",
        "what",
    )

    def __init__(self, src: Nic, dst: Nic, done: Done, lost: Lost, what: Any, now_s: float) -> None:
        self.src, self.dst = src, dst
        self.done, self.lost, self.what = done, lost, what
        self.left_bytes = 0.0
        self.rate = 0.0
        self.begun_s = self.since_s = now_s
        self.turn = 0  # of its planned end: a later one replaces it
        self.is_complete = self.is_over = self.is_aborted = False


class Nic:
    """One host's end of the network. While `num_cuts` is over 0 what is on its way stands still."""

    __slots__ = ("incoming", "num_cuts", "outgoing")

    def __init__(self) -> None:
        self.outgoing: dict[Transfer, None] = {}
        self.incoming: dict[Transfer, None] = {}
        self.num_cuts = 0


class Network:
    """All hosts with cards of one kind. A transfer that stands still for `peer_timeout_s` is given up."""

    def __init__(self, clock: VirtualClock, bytes_per_s: float, latency_s: float, peer_timeout_s: float) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._peer_timeout_s = peer_timeout_s
        self._cut_links: Counter[frozenset[Nic]] = Counter()
        self.num_lost = 0
        self.num_transfers = 0
        self.moved_bytes = 0.0
        self.num_in_flight = 0
        self.most_in_flight = 0

    def open(self, src: Nic, dst: Nic, head_bytes: float, done: Done, lost: Lost, what: Any) -> Transfer:
        """A transfer begins with the pages that are computed first."""
        transfer = Transfer(src, dst, done, lost, what, self._clock.now_s)
        self.num_transfers += 1
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        self._send(transfer, head_bytes)
        return transfer

    def finish(self, transfer: Transfer, tail_bytes: float) -> None:
        """The last pages can go."""
        if transfer.is_over:
            return
        transfer.is_complete = True
        self._send(transfer, tail_bytes)

    def abort(self, transfer: Transfer) -> None:
        """No byte moves any more, and no end is reported, even if all bytes are through and have not landed yet."""
        transfer.is_aborted = True
        if not transfer.is_over:
            transfer.is_over = True
            self.num_in_flight -= 1
            self._leave(transfer)

    def cut(self, nic: Nic, is_cut: bool) -> None:
        """Parts a host from all others, or joins it to them again. What was cut twice is joined twice."""
        nic.num_cuts += 1 if is_cut else -1
        self._share(nic)

    def cut_link(self, one: Nic, other: Nic, is_cut: bool) -> None:
        """Cuts the link between two hosts, or joins it again."""
        link = frozenset((one, other))
        self._cut_links[link] += 1 if is_cut else -1
        if not self._cut_links[link]:
            del self._cut_links[link]
        self._share(one, other)

    def _is_cut(self, src: Nic, dst: Nic) -> bool:
        if src is dst:
            return False
        return bool(src.num_cuts or dst.num_cuts or (self._cut_links and frozenset((src, dst)) in self._cut_links))

    def _send(self, transfer: Transfer, num_bytes: float) -> None:
        self.moved_bytes += num_bytes
        now_s = self._clock.now_s
        if transfer in transfer.src.outgoing:
            transfer.left_bytes -= transfer.rate * (now_s - transfer.since_s)
            transfer.since_s = now_s
            transfer.left_bytes += num_bytes
            self._plan(transfer)
            return
        transfer.left_bytes = num_bytes
        transfer.since_s = now_s
        if num_bytes <= 0.0:
            self._through(transfer)
            return
        transfer.src.outgoing[transfer] = None
        transfer.dst.incoming[transfer] = None
        transfer.rate = -1.0  # unlike any share, so that its end is planned
        self._share(transfer.src, transfer.dst)

    def _share(self, *nics: Nic) -> None:
        """The transfers of these cards have become more or fewer."""
        now_s, whole = self._clock.now_s, self._bytes_per_s
        touched: dict[Transfer, None] = {}
        for nic in nics:
            touched.update(nic.outgoing)
            touched.update(nic.incoming)
        for transfer in touched:
            src, dst = transfer.src, transfer.dst
            rate = whole / max(len(src.outgoing), len(dst.incoming))
            if self._is_cut(src, dst):
                rate = 0.0
            if rate != transfer.rate:
                if transfer.rate > 0.0:
                    transfer.left_bytes -= transfer.rate * (now_s - transfer.since_s)
                transfer.since_s = now_s
                transfer.rate = rate
                self._plan(transfer)

    def _plan(self, transfer: Transfer) -> None:
        transfer.turn += 1
        if transfer.rate > 0.0:
            end_s = transfer.since_s + max(transfer.left_bytes, 0.0) / transfer.rate
            self._clock.at(end_s, self._sent, (transfer, transfer.turn))
        else:
            self._clock.at(self._clock.now_s + self._peer_timeout_s, self._give_up, (transfer, transfer.turn))

    def _give_up(self, planned: tuple[Transfer, int]) -> None:
        transfer, turn = planned
        if transfer.turn == turn and not transfer.is_over:
            self.num_lost += 1
            self.abort(transfer)
            transfer.lost(transfer.what)

    def _sent(self, planned: tuple[Transfer, int]) -> None:
        transfer, turn = planned
        if transfer.turn == turn and not transfer.is_over:
            self._leave(transfer)
            self._through(transfer)

    def _leave(self, transfer: Transfer) -> None:
        src, dst = transfer.src, transfer.dst
        transfer.turn += 1
        if transfer in src.outgoing:
            del src.outgoing[transfer], dst.incoming[transfer]
            self._share(src, dst)

    def _through(self, transfer: Transfer) -> None:
        """All bytes that it has been given are there."""
        if not transfer.is_complete:
            return
        transfer.is_over = True
        self.num_in_flight -= 1
        self._clock.at(self._clock.now_s + self._latency_s, self._landed, transfer)

    def _landed(self, transfer: Transfer) -> None:
        if not transfer.is_aborted:
            transfer.done(transfer.what, self._clock.now_s - transfer.begun_s)
