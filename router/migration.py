"""Live migration: running sequences move to other decode workers as these have room. `move` draws the automaton.

    source                          router                               destination
      |  ... decodes ...              |---- Adopt (all tokens so far) ------->|  pages, receives
      |                               |<--- Reserved (ticket) ---------------|
      |<--- Migrate (ticket) ---------|                                      |
      |==== full pages, while it decodes on ================================>|
      |                               |<--- Copied --------------------------|
      |                               |---- Extend (tokens since, room) ---->|  the same again, at last with some room
      |                               |<--- Reserved (ticket) ---------------|
      |<--- Migrate (ticket, freeze) -|                                      |
      |---- Frozen ------------------>|---- Start (tokens since) ----------->|
      |==== the last pages =================================================>|
      |                               |<--- HandedOff -----------------------|  decodes
      |<--- Cancel -------------------|                                      |

Of a sequence with little to send there is only the last round. Whoever waits for room goes on where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.config import MigrationConfig
from slipstream.router.credits import Charge
from slipstream.router.messages import (
    Adopt,
    Cancel,
    Copied,
    Extend,
    Failed,
    Frozen,
    HandedOff,
    Migrate,
    Reserved,
    Resume,
    Start,
    unpack_ids,
)
from slipstream.router.move import Move, MoveResult
from slipstream.router.placement import progress
from slipstream.router.placement.shortlist import shortlist
from slipstream.router.prefix.index import PrefixIndex
from slipstream.router.prefix.sessions import Sessions
from slipstream.router.request_book import RequestBook
from slipstream.router.request_state import RequestState
from slipstream.router.roster import Roster, WorkerState

MAX_ROUNDS = 5  # of copying, the last included: each takes the time in which the pages of the next one fill
MAX_TRIES = 5  # of one wish
LOOKAHEAD = 32  # wishes that an event looks at
MIN_ROOM_TOKENS = 4
MAX_WITHOUT_ROOM = 4  # of those for whom there is no room now
FIRST_LATE_TOKENS = 8.0

MoveMessage = Reserved | Copied | Frozen | HandedOff | Failed


@dataclass(slots=True)
class _Wish:
    """A request is to leave `source`; `to` says where it shall go, if that matters. What `is_optional` is tried once.
    `why` is for its story."""

    source: WorkerState
    to: PeerId | None = None
    why: str = ""
    is_optional: bool = False
    num_tries: int = 0
    avoid: set[PeerId] = field(default_factory=set)


class Migrations:
    def __init__(
        self, config: MigrationConfig, roster: Roster, book: RequestBook, index: PrefixIndex, sessions: Sessions
    ) -> None:
        self._config = config
        self._roster = roster
        self._book = book
        self._index = index
        self._sessions = sessions
        self.wishes: dict[str, _Wish] = {}  # by request id; those under way, too
        self._late_tokens = FIRST_LATE_TOKENS  # that come between the last question and the stop, as was seen lately

    # ---- who is to move

    def wish(self, state: RequestState, to: PeerId | None = None) -> None:
        """The request is to go on elsewhere, as soon as it decodes and there is room."""
        if state.decode is not None and state.move is None:
            self.wishes[state.request_id] = _Wish(state.decode, to)

    def move_now(self, state: RequestState, to: WorkerState, why: str, now: float) -> bool:
        """Begins a move that nobody has to wait for: False if it cannot be made at once, and what goes wrong later ends
        it."""
        if state.decode is None or state.request_id in self.wishes:
            return False
        wish = _Wish(state.decode, to.peer, why, is_optional=True)
        if not self._takes(to, state, wish, now):
            return False
        self.wishes[state.request_id] = wish
        self._begin(state, wish, to, now)
        return True

    def begin_what_fits(self, now: float) -> None:
        """Moves those for whom there is room."""
        num_without_room = 0
        for request_id, wish in list(islice(self.wishes.items(), LOOKAHEAD)):
            state = self._book.get(request_id)
            if state is None or state.decode is not wish.source:
                del self.wishes[request_id]
            elif state.move is None and state.phase == "decode" and self.may_move(wish.source):
                destination = self._destination(state, wish, now) if num_without_room < MAX_WITHOUT_ROOM else None
                if destination is not None:
                    self._begin(state, wish, destination, now)
                else:
                    num_without_room += 1

    def may_move(self, worker: WorkerState) -> bool:
        """Not as many sequences leave it or come to it as may at once."""
        return worker.num_moves < self._config.max_at_once

    def _destination(self, state: RequestState, wish: _Wish, now: float) -> WorkerState | None:
        """Where the rest of the answer costs least: what is not cached has to be sent, and steps there take their time.
        None if nobody has room now."""
        if not self._roster.has_decode_room(state.version):
            return None
        if wish.to is not None:
            wanted = self._roster.get(wish.to)
            return wanted if wanted is not None and self._takes(wanted, state, wish, now) else None
        candidates = shortlist(state, self._roster, self._index, self._sessions, LOOKAHEAD)
        best: tuple[float, WorkerState] | None = None
        for worker in candidates.decodes:
            if not self._takes(worker, state, wish, now):
                continue
            num_pages = worker.pages_for(state.num_tokens + self._room(state))
            num_missing = num_pages - candidates.cached.get(worker, 0) // worker.hello.page_tokens
            load = worker.load
            step = worker.times.decode_step_s(load.num_seqs + 1, load.context_tokens + state.num_tokens)
            num_left = max(state.expected_output_tokens - len(state.output), 1.0)
            cost_s = worker.times.transfer_s(num_missing).seconds + num_left * step.seconds
            if best is None or cost_s < best[0]:
                best = cost_s, worker
        return best[1] if best is not None else None

    def _takes(self, worker: WorkerState, state: RequestState, wish: _Wish, now: float) -> bool:
        """The sequence can go on there, and there is room for it now."""
        ledger = worker.ledger
        return (
            worker is not wish.source
            and worker.peer not in wish.avoid
            and worker in self._roster.workers_of("decode", state.version)
            and ledger.free_slots > 0
            and ledger.free_pages >= worker.pages_for(state.num_tokens + self._room(state))
            and self.may_move(worker)
            and _suits(state, wish.source, worker)
            and self._roster.links.is_open(wish.source.hello, worker.hello, now)
        )

    # ---- the way

    def _begin(self, state: RequestState, wish: _Wish, destination: WorkerState, now: float) -> None:
        wish.num_tries += 1
        num_cached = self._index.held_tokens(destination, state)
        page_tokens = destination.hello.page_tokens
        num_full = (state.num_tokens - 1) // page_tokens
        is_last = num_full - num_cached // page_tokens < self._config.precopy_pages
        room = self._room(state) if is_last else 0
        num_pages = destination.pages_for(state.num_tokens + max(room, 1))
        state.last_attempt += 1
        state.move = Move(
            wish.source,
            destination,
            state.last_attempt,
            now,
            len(state.output),
            num_pages,
            is_last,
            num_full_pages=num_full,
        )
        destination.request_ids.add(state.request_id)
        for worker in (wish.source, destination):
            worker.num_moves += 1
        self._book.move_deadlines.set(state.request_id, now + self._config.timeout_s)
        seq = destination.ledger.spend(Charge(slots=1, pages=num_pages))
        request = state.engine_request()._replace(attempt=state.last_attempt)
        source = wish.source
        self._roster.links.used(source.hello, destination.hello, now)
        self._book.send(destination, Adopt(seq, request, source.peer, source.hello.tp, room))
        why = f": {wish.why}" if wish.why else ""
        state.record.note("decode", now, state.attempt, f"to move from {source.name} to {destination.name}{why}")

    def find(self, worker: WorkerState, request_id: str, attempt: int) -> RequestState | None:
        """The request whose move a message of `worker` is about, if it is about one."""
        state = self._book.get(request_id)
        if state is None or state.move is None or attempt != state.move.attempt:
            return None
        return state if worker is state.move.destination or worker is state.move.source else None

    def on_message(self, state: RequestState, worker: WorkerState, message: MoveMessage, now: float) -> None:
        """Of a request that `find` has found."""
        move = state.move
        assert move is not None
        match message:
            case Failed(reason=reason):
                if message.is_unreachable:
                    self._roster.links.failed(move.source.hello, move.destination.hello, now)
                self._on_failed(state, move, worker, reason, now)
            case Reserved() if worker is move.destination:
                self._on_reserved(state, move, message, now)
            case Copied() if worker is move.destination:
                self._on_copied(state, move, message)
            case HandedOff() if worker is move.destination:
                self._on_handed_off(state, move, message, now)

    def _on_reserved(self, state: RequestState, move: Move, message: Reserved, now: float) -> None:
        ticket = message.ticket
        if move.phase != "asked" or ticket.transfer_id == move.transfer_id:
            return
        move.transfer_id = ticket.transfer_id
        move.phase = "freezing" if move.is_last else "copying"
        if move.is_last:
            self._book.move_deadlines.set(state.request_id, now + self._config.freeze_timeout_s)
        elif not ticket.num_pages:
            return  # all of it is there, and `Copied` will say so
        move.is_source_told = True
        self._book.send(
            move.source, Migrate(state.request_id, state.attempt, move.attempt, ticket, freeze=move.is_last)
        )

    def _on_copied(self, state: RequestState, move: Move, message: Copied) -> None:
        if move.phase != "copying" or message.transfer_id != move.transfer_id:
            return
        destination = move.destination
        page_tokens = destination.hello.page_tokens
        num_full = (state.num_tokens - 1) // page_tokens
        move.num_bytes += message.num_bytes
        move.num_rounds += 1
        move.phase = "asked"
        move.is_last = num_full - move.num_full_pages < self._config.precopy_pages or move.num_rounds == MAX_ROUNDS
        move.num_full_pages = num_full
        room = self._room(state) if move.is_last else 0
        num_pages = destination.pages_for(state.num_tokens + max(room, 1))
        seq = destination.ledger.spend(Charge(pages=max(num_pages - move.num_pages, 0)))
        move.num_pages = max(num_pages, move.num_pages)
        missed = self._missed(state, move)
        self._book.send(destination, Extend(seq, state.request_id, move.attempt, missed, room))

    def on_frozen(self, worker: WorkerState, message: Frozen, now: float) -> None:
        """The source stands still, and has told all its tokens."""
        state = self._book.get(message.request_id)
        move = state.move if state is not None and state.attempt == message.attempt else None
        if state is None or move is None or worker is not move.source or move.phase != "freezing":
            return
        move.frozen_s = now
        if message.num_output_tokens != len(state.output):
            detail = f"{worker.name} stopped after {message.num_output_tokens} tokens, {len(state.output)} are known"
            self.stop(state, now, "failed", detail)
            return
        move.phase = "starting"
        self._learn_late(len(state.output) - move.num_known_tokens)
        missed = self._missed(state, move)
        self._book.send(move.destination, Start(state.request_id, move.attempt, missed))
        if move.has_landed:
            self._take_over(state, move, now)

    def _on_handed_off(self, state: RequestState, move: Move, message: HandedOff, now: float) -> None:
        if move.has_landed or move.phase not in ("freezing", "starting"):
            return
        move.has_landed = True
        self._roster.links.worked(move.source.hello, move.destination.hello)
        move.num_bytes += message.num_bytes
        totals = self._book.totals
        totals.num_transfers += 1
        totals.transfer_bytes += message.num_bytes
        totals.transfer_s += message.seconds
        if move.phase == "starting":
            self._take_over(state, move, now)

    def _room(self, state: RequestState) -> int:
        """Tokens that may come until the source has stopped: pages for more of them are sent for nothing, for fewer the
        move is off."""
        num_left = max(state.request.sampling.max_tokens - len(state.output), 1)
        return min(max(int(2 * self._late_tokens), MIN_ROOM_TOKENS), num_left)

    def _learn_late(self, num_tokens: int) -> None:
        self._late_tokens = max(num_tokens, 0.8 * self._late_tokens)

    def _missed(self, state: RequestState, move: Move) -> tuple[int, ...]:
        """Tokens that the destination does not know yet; now it does."""
        missed = state.output.packed_ids[4 * move.num_known_tokens :]
        move.num_known_tokens = len(state.output)
        return tuple(unpack_ids(missed))

    def _take_over(self, state: RequestState, move: Move, now: float, *, source_lost: str = "") -> None:
        """The request belongs to the destination from now on. Without its source it may still lack its last pages:
        either they are there, or the destination will say Failed."""
        source, destination = move.source, move.destination
        old_attempt = state.attempt
        del self.wishes[state.request_id]
        self._book.end_move(state, "moved")
        progress.moved(state, destination, is_whole=move.has_landed)
        source.request_ids.discard(state.request_id)
        destination.request_ids.add(state.request_id)
        state.decode, state.attempt = destination, move.attempt
        state.handed_off = move.has_landed
        state.paused_since_s = move.frozen_s
        state.num_output_at_move = len(state.output)
        self._index.expect(destination, state, now)
        self._sessions.note(state.request.session, destination, state.request.tenant)
        detail = f"moved from {source.name} to {destination.name}: {move.num_bytes} bytes in {move.num_rounds} rounds"
        if source_lost:
            state.enter("transfer", now, f"{detail}, {source_lost}", moved_to=destination.peer)
        else:
            self._book.send(source, Cancel(state.request_id, old_attempt))
            state.enter("decode", now, detail, moved_to=destination.peer)
        if destination.draining:
            self.wish(state)

    # ---- what goes wrong

    def _on_failed(self, state: RequestState, move: Move, worker: WorkerState, reason: str, now: float) -> None:
        if worker is move.source and move.has_landed:
            return  # it needs the source's word no more
        if worker is move.destination:
            result: MoveResult = "refused" if move.phase == "asked" else "failed"
            if result == "refused":
                worker.ledger.exhaust()
            self.stop(state, now, result, f"{worker.name}: {reason}", silent=worker)
            return
        if move.phase == "freezing":
            self._learn_late(len(state.output) - move.num_known_tokens)
        self.stop(state, now, "refused" if move.frozen_s is None else "failed", f"{worker.name}: {reason}")

    def stop(
        self, state: RequestState, now: float, result: MoveResult, reason: str, silent: WorkerState | None = None
    ) -> None:
        """The move is off, and the request goes on at its source. It is tried again where that makes sense."""
        move = state.move
        assert move is not None
        self._book.end_move(state, result, silent)
        if move.is_source_told:
            self._book.send(move.source, Resume(state.request_id, state.attempt))
        state.record.note("decode", now, state.attempt, f"stays on {move.source.name}: {reason}")
        wish = self.wishes[state.request_id]
        if result != "refused":
            wish.avoid.add(move.destination.peer)
        if wish.num_tries >= MAX_TRIES or wish.is_optional:
            del self.wishes[state.request_id]

    def expire(self, now: float) -> None:
        """Ends what takes too long."""
        for request_id in self._book.move_deadlines.pop_due(now):
            state = self._book[request_id]
            assert state.move is not None
            self.stop(state, now, "timed_out", f"{state.move.destination.name} has not taken over in time")

    def on_lost(self, state: RequestState, worker: WorkerState, now: float, reason: str) -> bool:
        """A worker that has a part in the request is gone. True if the request can go on all the same."""
        move = state.move
        if move is None:
            return False
        if worker is move.destination:
            self.stop(state, now, "lost", f"{worker.name} is lost: {reason}", silent=worker)
            return True
        if move.phase != "starting":
            return False
        self._take_over(state, move, now, source_lost=f"{worker.name} is lost: {reason}")
        return True

    def leave(self, worker: WorkerState, states: Iterable[RequestState], now: float) -> None:
        """The worker drains: what comes here stays away, what runs here is to leave."""
        for state in states:
            move = state.move
            if move is not None and move.destination is worker:
                if move.phase in ("asked", "copying"):
                    self.stop(state, now, "ended", f"{worker.name} is draining")
            elif move is not None and move.source is worker:
                wish = self.wishes[state.request_id]
                wish.is_optional, wish.to = False, None
            elif state.decode is worker:
                self.wish(state)

    def check_integrity(self) -> None:
        """Raises AssertionError if moves, their workers' counts and deadlines do not add up."""
        num_moves = 0
        for state in self._book:
            move = state.move
            if move is None:
                continue
            num_moves += 1
            assert (state.phase, state.decode) == ("decode", move.source), state.request_id
            assert state.request_id in self.wishes
            assert state.request_id in self._book.move_deadlines
            assert state.attempt < move.attempt <= state.last_attempt
            for worker in (move.source, move.destination):
                assert self._roster.get(worker.peer) is worker, worker.name
                assert state.request_id in worker.request_ids, worker.name
        assert num_moves == len(self._book.move_deadlines)
        assert 2 * num_moves == sum(worker.num_moves for worker in self._roster)


def _suits(state: RequestState, source: WorkerState, destination: WorkerState) -> bool:
    """Pages have the same size, and the answer ends there where it would have ended here."""
    ours, theirs = source.hello, destination.hello
    longest = state.num_prompt_tokens + state.request.sampling.max_tokens
    same_end = min(longest, ours.max_model_len) == min(longest, theirs.max_model_len)
    return ours.page_tokens == theirs.page_tokens and same_end
