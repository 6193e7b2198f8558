"""The router's conduct towards its workers, message by message: what docs/design.md promises them under "Attempts" and
"Credits". Mistakes here often heal by themselves (a lease ends, a retry works), so that only a witness sees them."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.kv_transfer.ticket import HandoffTicket, PeerId
from slipstream.router.messages import (
    Cancel,
    Drain,
    Generate,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    RouterMessage,
    Start,
    WorkerMessage,
    unpack_ids,
)

AttemptKey = tuple[str, int]


class Conduct:
    """`tokens_of(request_id)` are those that its client has got so far."""

    def __init__(self, tokens_of: Callable[[str], list[int]]) -> None:
        self._tokens_of = tokens_of
        self._last_seq: dict[PeerId, int] = {}
        self._knows: dict[PeerId, set[AttemptKey]] = {}
        self._drained: set[PeerId] = set()
        self._tickets: dict[AttemptKey, tuple[PeerId, HandoffTicket]] = {}
        self._reserved_at: dict[AttemptKey, PeerId] = {}
        self._placed: set[AttemptKey] = set()
        self._started: set[AttemptKey] = set()
        self._cancelled: set[tuple[PeerId, AttemptKey]] = set()
        self._latest: dict[str, int] = {}

    def joined(self, peer: PeerId) -> None:
        """A connection begins: nothing of an earlier one counts."""
        self._last_seq[peer] = 0
        self._knows[peer] = set()
        self._drained.discard(peer)

    def heard(self, peer: PeerId, message: WorkerMessage) -> None:
        if isinstance(message, Reserved):
            self._tickets[message.request_id, message.attempt] = (peer, message.ticket)

    def sent(self, peer: PeerId, message: RouterMessage) -> None:
        match message:
            case Generate(seq, request) | Reserve(seq, request) | Prefill(seq, request):
                key = (request.request_id, request.attempt)
                self._check_work(peer, seq, key)
                got = self._tokens_of(request.request_id)
                assert unpack_ids(request.output_ids) == got, f"{key} is sent with other tokens than the client has"
                self._check_place(peer, message, key)
                self._knows[peer].add(key)
            case Start(request_id, attempt, token_ids):
                key = (request_id, attempt)
                assert self._reserved_at.get(key) == peer, f"Start of {key} for {peer}, which did not reserve"
                assert key not in self._started, f"Start of {key} comes twice"
                assert tuple(self._tokens_of(request_id)[-len(token_ids) :]) == token_ids
                self._started.add(key)
            case Cancel(request_id, attempt):
                key = (request_id, attempt)
                assert key in self._knows[peer], f"Cancel of {key} for {peer}, which never heard of it"
                assert (peer, key) not in self._cancelled, f"Cancel of {key} for {peer} comes twice"
                self._cancelled.add((peer, key))
            case PeerLost(lost):
                assert lost != peer
            case Drain():
                self._drained.add(peer)

    def _check_work(self, peer: PeerId, seq: int, key: AttemptKey) -> None:
        assert seq == self._last_seq[peer] + 1, f"message {seq} for {peer} after {self._last_seq[peer]}"
        self._last_seq[peer] = seq
        latest = self._latest.get(key[0], -1)
        assert key[1] >= latest, f"attempt {key[1]} of {key[0]} after {latest}"
        self._latest[key[0]] = key[1]

    def _check_place(self, peer: PeerId, message: Generate | Reserve | Prefill, key: AttemptKey) -> None:
        converts = isinstance(message, Generate) and self._reserved_at.get(key) == peer
        assert converts or peer not in self._drained, f"{type(message).__name__} for {peer} after Drain"
        if isinstance(message, Prefill):
            assert key in self._tickets, f"Prefill of {key} without a landing place"
            landing, ticket = self._tickets[key]
            assert message.ticket == ticket, f"Prefill of {key} with a ticket of another attempt"
            assert landing == self._reserved_at[key]
        else:
            assert converts or key not in self._placed, f"{key} is placed twice"
            self._placed.add(key)
            if isinstance(message, Reserve):
                self._reserved_at[key] = peer
