"""Checks the router's messages to its workers, one by one, against the rules of docs/design/attempts.md and
admission.md. Mistakes here often heal by themselves (a lease ends, a retry works), so only such a check finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Drain,
    Extend,
    Failed,
    Generate,
    HandedOff,
    Migrate,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    Resume,
    RouterMessage,
    Start,
    StepOutput,
    WorkerMessage,
    unpack_ids,
)

AttemptKey = tuple[str, int]

NO_PAGES = "no pages"  # a worker's reason


class Conduct:
    """`tokens_of(request_id)` are those that its client has got so far."""

    def __init__(self, tokens_of: Callable[[str], list[int]]) -> None:
        self.num_without_pages = 0  # attempts for which a worker had no pages
        self._tokens_of = tokens_of
        self._last_seq: dict[PeerId, int] = {}
        self._knows: dict[PeerId, set[AttemptKey]] = {}
        self._drained: set[PeerId] = set()
        self._tickets: dict[AttemptKey, tuple[PeerId, HandoffTicket]] = {}
        self._reserved_at: dict[AttemptKey, PeerId] = {}
        self._placed: set[AttemptKey] = set()
        self._started: set[AttemptKey] = set()
        self._converted: set[AttemptKey] = set()  # by a Generate of which nothing has been heard yet
        self._cancelled: set[tuple[PeerId, AttemptKey]] = set()
        self._latest: dict[str, int] = {}
        self._prefills: dict[AttemptKey, PeerId] = {}
        self._handed_off: set[AttemptKey] = set()
        self._migrating: dict[AttemptKey, bool] = {}  # at their sources; whether they have been told to stand still
        self._parts: dict[AttemptKey, set[PeerId]] = {}  # who has something to do or to keep for an attempt
        self._told_of: dict[PeerId, set[PeerId]] = {}  # of whose loss who has been told

    def joined(self, peer: PeerId) -> None:
        """A connection begins: nothing of an earlier one counts."""
        self._told_of[peer] = set()
        self._last_seq[peer] = 0
        self._knows[peer] = set()
        self._drained.discard(peer)

    def left(self, peer: PeerId) -> None:
        """A worker is gone, and all that it had a part in."""
        for parts in self._parts.values():
            parts.discard(peer)

    def check_told(self, peer: PeerId, others: Iterable[PeerId]) -> None:
        """What the loss of a worker led to has been sent."""
        untold = set(others) - self._told_of[peer]
        assert not untold, f"{untold} were not told that {peer} is lost"

    def heard(self, peer: PeerId, message: WorkerMessage) -> None:
        match message:
            case Reserved(request_id, attempt, _, ticket):
                self._tickets[request_id, attempt] = (peer, ticket)
            case Failed(request_id, attempt, reason):
                self.num_without_pages += reason == NO_PAGES
                # That may be the reservation, and its Generate still on the way.
                if (request_id, attempt) not in self._converted:
                    self._leave((request_id, attempt), peer)
            case HandedOff(request_id, attempt):
                self._handed_off.add((request_id, attempt))
                self._close_prefill((request_id, attempt))
            case StepOutput(chunks):
                for chunk in chunks:
                    key = (chunk.request_id, chunk.attempt)
                    is_decode = self._prefills.get(key) != peer
                    if is_decode and chunk.token_ids:
                        self._converted.discard(key)
                        self._leave(key, self._prefills.get(key))
                    if chunk.finish_reason == "error" or (is_decode and chunk.finish_reason is not None):
                        self._leave(key, peer)

    def finished(self, request_id: str) -> None:
        """The client has its answer: nobody is left with a part in it who was not told."""
        self._check_left(request_id, self._latest.get(request_id, -1) + 1)

    def _leave(self, key: AttemptKey, peer: PeerId | None) -> None:
        self._parts.get(key, set()).discard(peer)  # type: ignore[arg-type]

    def _close_prefill(self, key: AttemptKey) -> None:
        """A prefill group is done with an attempt when its pages have landed and its token has been passed on."""
        if key in self._handed_off and key in self._started:
            self._leave(key, self._prefills.get(key))

    def _check_left(self, request_id: str, attempt: int) -> None:
        for earlier in range(attempt):
            key = (request_id, earlier)
            for peer in self._parts.pop(key, ()):
                assert (peer, key) in self._cancelled, f"{peer} was not told that {key} is over"

    def sent(self, peer: PeerId, message: RouterMessage) -> None:
        match message:
            case Generate(seq, request) | Reserve(seq, request) | Prefill(seq, request):
                key = (request.request_id, request.attempt)
                self._check_work(peer, seq, key)
                got = self._tokens_of(request.request_id)
                assert unpack_ids(request.output_ids) == got, f"{key} is sent with other tokens than the client has"
                self._check_place(peer, message, key)
                self._knows[peer].add(key)
                self._check_left(*key)
                self._parts.setdefault(key, set()).add(peer)
                if isinstance(message, Prefill):
                    self._prefills[key] = peer
            case Adopt(seq, request):
                key = (request.request_id, request.attempt)
                self._check_work(peer, seq, key)
                assert unpack_ids(request.output_ids) == self._tokens_of(request.request_id)
                assert peer not in self._drained, f"Adopt for {peer} after Drain"
                assert key not in self._placed, f"{key} is placed twice"
                self._placed.add(key)
                self._reserved_at[key] = peer
                self._knows[peer].add(key)
                self._parts.setdefault(key, set()).add(peer)
            case Extend(seq, request_id, attempt, token_ids):
                key = (request_id, attempt)
                self._check_work(peer, seq, key)
                assert self._reserved_at.get(key) == peer, f"Extend of {key} for {peer}, which did not reserve"
                assert key not in self._started, f"Extend of {key} after Start"
                self._check_last_tokens(request_id, token_ids)
            case Migrate(request_id, attempt, to_attempt, ticket, freeze):
                key = (request_id, attempt)
                assert key in self._knows[peer], f"Migrate of {key} for {peer}, which never heard of it"
                landing, promised = self._tickets[request_id, to_attempt]
                assert (landing, promised) == (ticket.destination, ticket), f"Migrate of {key} without a landing place"
                assert landing != peer
                assert not self._migrating.get(key), f"Migrate of {key}, which stands still"
                self._migrating[key] = freeze
            case Resume(request_id, attempt):
                assert (request_id, attempt) in self._migrating, f"Resume of {(request_id, attempt)}, which goes on"
                del self._migrating[request_id, attempt]
            case Start(request_id, attempt, token_ids):
                key = (request_id, attempt)
                assert self._reserved_at.get(key) == peer, f"Start of {key} for {peer}, which did not reserve"
                assert key not in self._started, f"Start of {key} comes twice"
                self._check_last_tokens(request_id, token_ids)
                self._started.add(key)
                self._close_prefill(key)
            case Cancel(request_id, attempt):
                key = (request_id, attempt)
                assert key in self._knows[peer], f"Cancel of {key} for {peer}, which never heard of it"
                assert (peer, key) not in self._cancelled, f"Cancel of {key} for {peer} comes twice"
                self._cancelled.add((peer, key))
            case PeerLost(lost):
                assert lost != peer
                self._told_of[lost].add(peer)
            case Drain():
                self._drained.add(peer)

    def _check_last_tokens(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        got = self._tokens_of(request_id)
        assert tuple(got[len(got) - len(token_ids) :]) == token_ids, (
            f"{request_id} is told other tokens than its client"
        )

    def _check_work(self, peer: PeerId, seq: int, key: AttemptKey) -> None:
        assert seq == self._last_seq[peer] + 1, f"message {seq} for {peer} after {self._last_seq[peer]}"
        self._last_seq[peer] = seq
        latest = self._latest.get(key[0], -1)
        assert key[1] >= latest, f"attempt {key[1]} of {key[0]} after {latest}"
        self._latest[key[0]] = key[1]

    def _check_place(self, peer: PeerId, message: Generate | Reserve | Prefill, key: AttemptKey) -> None:
        converts = isinstance(message, Generate) and self._reserved_at.get(key) == peer
        if converts:
            self._converted.add(key)
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
