"""Carries a running sequence over to another decode worker, by the messages of both. `move` draws the automaton of one
move.

    source                          router                               destination
      |  ... decodes ...              |---- Adopt (all tokens so far) ------->|  pages, receives
      |                               |<--- Reserved (ticket) ---------------|
      |<--- Migrate (ticket) ---------|                                      |
      |==== full pages, while it decodes on ================================>|
      |                               |<--- Copied --------------------------|
      |                               |---- Extend (tokens since, room) ---->|  repeated, finally with some room
      |                               |<--- Reserved (ticket) ---------------|
      |<--- Migrate (ticket, freeze) -|                                      |
      |---- Frozen ------------------>|---- Start (tokens since) ----------->|
      |==== the last pages =================================================>|
      |                               |<--- HandedOff -----------------------|  decodes
      |<--- Cancel -------------------|                                      |

A sequence with few pages to send has the last round only. Sans-IO.
"""

from __future__ import annotations

from slipstream.router.config.router_config import MigrationConfig
from slipstream.router.dispatch.migration.copy_rounds import CopyRounds
from slipstream.router.dispatch.migration.migration_requests import MigrationRequest, MigrationRequests
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.placement import progress
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.prefix.sessions import Sessions
from slipstream.router.protocol.messages import (
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
from slipstream.router.registry.credits import Charge
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.migration import Migration, MigrationResult
from slipstream.router.requests.request_state import RequestState

MigrationMessage = Reserved | Copied | Frozen | HandedOff | Failed


class Migrations:
    """Moves the sequences that `RunningMigrations` has chosen. A move that succeeds ends its migration request; after
    one that fails there is another try, or none."""

    def __init__(
        self,
        config: MigrationConfig,
        registry: WorkerRegistry,
        table: RequestTable,
        index: PrefixIndex,
        sessions: Sessions,
        wishes: MigrationRequests,
    ) -> None:
        self._config = config
        self._registry = registry
        self._table = table
        self._index = index
        self._sessions = sessions
        self._wishes = wishes
        self._rounds = CopyRounds(config)

    def room_tokens(self, state: RequestState) -> int:
        """For how many tokens beyond the known ones a destination has to have room."""
        return self._rounds.room_tokens(state)

    def begin(self, state: RequestState, wish: MigrationRequest, destination: WorkerState, now: float) -> None:
        """Asks the destination for room."""
        wish.num_tries += 1
        num_cached = self._index.held_tokens(destination, state)
        first = self._rounds.plan(state, destination, num_cached // destination.hello.page_tokens, 0)
        state.last_attempt += 1
        state.move = Migration(
            wish.source,
            destination,
            state.last_attempt,
            now,
            len(state.output),
            first.num_pages,
            first.is_last,
            num_full_pages=first.num_full_pages,
        )
        destination.request_ids.add(state.request_id)
        for worker in (wish.source, destination):
            worker.num_moves += 1
        self._table.move_deadlines.set(state.request_id, now + self._config.timeout_s)
        seq = destination.ledger.spend(Charge(slots=1, pages=first.num_pages))
        request = state.engine_request()._replace(attempt=state.last_attempt)
        source = wish.source
        self._registry.links.used(source.hello, destination.hello, now)
        self._table.send(destination, Adopt(seq, request, source.peer, source.hello.tp, first.num_room_tokens))
        why = f": {wish.why}" if wish.why else ""
        state.record.note("decode", now, state.attempt, f"to move from {source.name} to {destination.name}{why}")

    def find(self, worker: WorkerState, request_id: str, attempt: int) -> RequestState | None:
        """The request whose move a message of `worker` is about; None if the message is about no move, or an old
        one."""
        state = self._table.get(request_id)
        if state is None or state.move is None or attempt != state.move.attempt:
            return None
        return state if worker is state.move.destination or worker is state.move.source else None

    def on_message(self, state: RequestState, worker: WorkerState, message: MigrationMessage, now: float) -> None:
        """Handles a message about the move of a request that `find` has returned."""
        move = state.move
        assert move is not None
        match message:
            case Failed(reason=reason):
                if message.is_unreachable:
                    self._registry.links.failed(move.source.hello, move.destination.hello, now)
                self._on_failed(state, move, worker, reason, now)
            case Reserved() if worker is move.destination:
                self._on_reserved(state, move, message, now)
            case Copied() if worker is move.destination:
                self._on_copied(state, move, message)
            case HandedOff() if worker is move.destination:
                self._on_handed_off(state, move, message, now)

    def _on_reserved(self, state: RequestState, move: Migration, message: Reserved, now: float) -> None:
        ticket = message.ticket
        if move.phase != "asked" or ticket.transfer_id == move.transfer_id:
            return
        move.transfer_id = ticket.transfer_id
        move.phase = "freezing" if move.is_last else "copying"
        if move.is_last:
            self._table.move_deadlines.set(state.request_id, now + self._config.freeze_timeout_s)
        elif not ticket.num_pages:
            return  # the destination has all full pages in its cache, and will say so with `Copied`
        move.is_source_told = True
        self._table.send(
            move.source, Migrate(state.request_id, state.attempt, move.attempt, ticket, freeze=move.is_last)
        )

    def _on_copied(self, state: RequestState, move: Migration, message: Copied) -> None:
        if move.phase != "copying" or message.transfer_id != move.transfer_id:
            return
        destination = move.destination
        upcoming = self._rounds.plan(state, destination, move.num_full_pages, move.num_rounds)
        move.num_bytes += message.num_bytes
        move.num_rounds += 1
        move.phase = "asked"
        move.is_last = upcoming.is_last
        move.num_full_pages = upcoming.num_full_pages
        seq = destination.ledger.spend(Charge(pages=max(upcoming.num_pages - move.num_pages, 0)))
        move.num_pages = max(upcoming.num_pages, move.num_pages)
        missed = self._missed(state, move)
        self._table.send(destination, Extend(seq, state.request_id, move.attempt, missed, upcoming.num_room_tokens))

    def on_frozen(self, worker: WorkerState, message: Frozen, now: float) -> None:
        """The source stands still, and has sent all its tokens to the router."""
        state = self._table.get(message.request_id)
        move = state.move if state is not None and state.attempt == message.attempt else None
        if state is None or move is None or worker is not move.source or move.phase != "freezing":
            return
        move.frozen_s = now
        if message.num_output_tokens != len(state.output):
            detail = f"{worker.name} stopped after {message.num_output_tokens} tokens, {len(state.output)} are known"
            self.stop(state, now, "failed", detail)
            return
        move.phase = "starting"
        self._rounds.observe_late(len(state.output) - move.num_known_tokens)
        missed = self._missed(state, move)
        self._table.send(move.destination, Start(state.request_id, move.attempt, missed))
        if move.has_landed:
            self._take_over(state, move, now)

    def _on_handed_off(self, state: RequestState, move: Migration, message: HandedOff, now: float) -> None:
        if move.has_landed or move.phase not in ("freezing", "starting"):
            return
        move.has_landed = True
        self._registry.links.worked(move.source.hello, move.destination.hello)
        move.num_bytes += message.num_bytes
        totals = self._table.totals
        totals.num_transfers += 1
        totals.transfer_bytes += message.num_bytes
        totals.transfer_s += message.seconds
        if move.phase == "starting":
            self._take_over(state, move, now)

    def _missed(self, state: RequestState, move: Migration) -> tuple[int, ...]:
        """The tokens that the destination lacks; they count as sent from now on."""
        missed = state.output.packed_ids[4 * move.num_known_tokens :]
        move.num_known_tokens = len(state.output)
        return tuple(unpack_ids(missed))

    def _take_over(self, state: RequestState, move: Migration, now: float, *, source_lost: str = "") -> None:
        """The request belongs to the destination from now on. If the source was lost, the last pages may be missing;
        then the destination will say Failed."""
        source, destination = move.source, move.destination
        old_attempt = state.attempt
        del self._wishes[state.request_id]
        self._table.end_move(state, "moved")
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
            self._table.send(source, Cancel(state.request_id, old_attempt))
            state.enter("decode", now, detail, moved_to=destination.peer)
        if destination.draining:
            self._wishes.add(state)

    def _on_failed(self, state: RequestState, move: Migration, worker: WorkerState, reason: str, now: float) -> None:
        if worker is move.source and move.has_landed:
            return  # the destination has all pages
        if worker is move.destination:
            result: MigrationResult = "refused" if move.phase == "asked" else "failed"
            if result == "refused":
                worker.ledger.exhaust()
            self.stop(state, now, result, f"{worker.name}: {reason}", silent=worker)
            return
        if move.phase == "freezing":
            self._rounds.observe_late(len(state.output) - move.num_known_tokens)
        self.stop(state, now, "refused" if move.frozen_s is None else "failed", f"{worker.name}: {reason}")

    def stop(
        self, state: RequestState, now: float, result: MigrationResult, reason: str, silent: WorkerState | None = None
    ) -> None:
        """The move is cancelled, and the request continues at its source. Unless the tries are used up, another move
        will be tried. `silent` no longer knows the sequence, so it is sent no Cancel."""
        move = state.move
        assert move is not None
        self._table.end_move(state, result, silent)
        if move.is_source_told:
            self._table.send(move.source, Resume(state.request_id, state.attempt))
        state.record.note("decode", now, state.attempt, f"stays on {move.source.name}: {reason}")
        self._wishes.failed(state.request_id, move.destination, result)

    def expire(self, now: float) -> None:
        """Stops the moves that take too long."""
        for request_id in self._table.move_deadlines.pop_due(now):
            state = self._table[request_id]
            assert state.move is not None
            self.stop(state, now, "timed_out", f"{state.move.destination.name} has not taken over in time")

    def on_lost(self, state: RequestState, worker: WorkerState, now: float, reason: str) -> bool:
        """A worker that has a part in the request is lost. Returns whether the request can continue nevertheless,
        either at its source or at a destination whose source stood still already."""
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

    def check_integrity(self) -> None:
        """Raises AssertionError if moves, their workers' counts and deadlines do not add up."""
        num_moves = 0
        for state in self._table:
            move = state.move
            if move is None:
                continue
            num_moves += 1
            assert (state.phase, state.decode) == ("decode", move.source), state.request_id
            assert state.request_id in self._wishes
            assert state.request_id in self._table.move_deadlines
            assert state.attempt < move.attempt <= state.last_attempt
            for worker in (move.source, move.destination):
                assert self._registry.get(worker.peer) is worker, worker.name
                assert state.request_id in worker.request_ids, worker.name
        assert num_moves == len(self._table.move_deadlines)
        assert 2 * num_moves == sum(worker.num_moves for worker in self._registry)
