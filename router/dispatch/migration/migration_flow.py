"""Carries a running sequence over to another decode worker, by the messages of both. `requests.migration` draws the
automaton of one migration.

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
from slipstream.router.dispatch.table.traced_attempts import trace_attempt
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


class MigrationFlow:
    """Moves the sequences that `MigrationScheduler` has chosen. A migration that succeeds ends its request; after one
    that fails there is another try, or none."""

    def __init__(
        self,
        config: MigrationConfig,
        registry: WorkerRegistry,
        table: RequestTable,
        index: PrefixIndex,
        sessions: Sessions,
        requests: MigrationRequests,
    ) -> None:
        self._config = config
        self._registry = registry
        self._table = table
        self._index = index
        self._sessions = sessions
        self._requests = requests
        self.rounds = CopyRounds(config)

    def begin(self, state: RequestState, request: MigrationRequest, destination: WorkerState, now: float) -> None:
        """Asks the destination for room."""
        request.num_tries += 1
        num_cached = self._index.held_tokens(destination, state)
        first = self.rounds.plan(state, destination, num_cached // destination.hello.page_tokens, 0)
        state.last_attempt += 1
        state.migration = Migration(
            request.source,
            destination,
            state.last_attempt,
            now,
            len(state.output),
            first.num_pages,
            first.is_last,
            num_full_pages=first.num_full_pages,
        )
        destination.request_ids.add(state.request_id)
        for worker in (request.source, destination):
            worker.num_migrations += 1
        self._table.migration_deadlines.set(state.request_id, now + self._config.timeout_s)
        if state.request.trace_span:
            trace_attempt(self._table, destination, state, state.last_attempt)
        seq = destination.ledger.spend(Charge(slots=1, pages=first.num_pages))
        engine_request = state.engine_request()._replace(attempt=state.last_attempt)
        source = request.source
        self._registry.links.used(source.hello, destination.hello, now)
        self._table.send(destination, Adopt(seq, engine_request, source.peer, source.hello.tp, first.num_room_tokens))
        why = f": {request.why}" if request.why else ""
        state.record.note("decode", now, state.attempt, f"to move from {source.name} to {destination.name}{why}")

    def find(self, worker: WorkerState, request_id: str, attempt: int) -> RequestState | None:
        """The request whose migration a message of `worker` is about; None if the message is about no migration, or an
        old one."""
        state = self._table.get(request_id)
        if state is None or state.migration is None or attempt != state.migration.attempt:
            return None
        return state if worker is state.migration.destination or worker is state.migration.source else None

    def on_message(self, state: RequestState, worker: WorkerState, message: MigrationMessage, now: float) -> None:
        """Handles a message about the migration of a request that `find` has returned."""
        migration = state.migration
        assert migration is not None
        match message:
            case Failed(reason=reason):
                if message.is_unreachable:
                    self._registry.links.failed(migration.source.hello, migration.destination.hello, now)
                self._on_failed(state, migration, worker, reason, now)
            case Reserved() if worker is migration.destination:
                self._on_reserved(state, migration, message, now)
            case Copied() if worker is migration.destination:
                self._on_copied(state, migration, message)
            case HandedOff() if worker is migration.destination:
                self._on_handed_off(state, migration, message, now)

    def _on_reserved(self, state: RequestState, migration: Migration, message: Reserved, now: float) -> None:
        ticket = message.ticket
        if migration.phase != "reserving" or ticket.transfer_id == migration.transfer_id:
            return
        migration.transfer_id = ticket.transfer_id
        migration.phase = "freezing" if migration.is_last else "copying"
        if migration.is_last:
            self._table.migration_deadlines.set(state.request_id, now + self._config.freeze_timeout_s)
        elif not ticket.num_pages:
            return  # the destination has all full pages in its cache, and will say so with `Copied`
        migration.source_has_ticket = True
        self._table.send(
            migration.source,
            Migrate(state.request_id, state.attempt, migration.attempt, ticket, freeze=migration.is_last),
        )

    def _on_copied(self, state: RequestState, migration: Migration, message: Copied) -> None:
        if migration.phase != "copying" or message.transfer_id != migration.transfer_id:
            return
        destination = migration.destination
        upcoming = self.rounds.plan(state, destination, migration.num_full_pages, migration.num_rounds)
        migration.num_bytes += message.num_bytes
        migration.num_rounds += 1
        migration.phase = "reserving"
        migration.is_last = upcoming.is_last
        migration.num_full_pages = upcoming.num_full_pages
        seq = destination.ledger.spend(Charge(pages=max(upcoming.num_pages - migration.num_pages, 0)))
        migration.num_pages = max(upcoming.num_pages, migration.num_pages)
        missed = self._missed(state, migration)
        self._table.send(
            destination, Extend(seq, state.request_id, migration.attempt, missed, upcoming.num_room_tokens)
        )

    def on_frozen(self, worker: WorkerState, message: Frozen, now: float) -> None:
        """The source stands still, and has sent all its tokens to the router."""
        state = self._table.get(message.request_id)
        migration = state.migration if state is not None and state.attempt == message.attempt else None
        if state is None or migration is None or worker is not migration.source or migration.phase != "freezing":
            return
        migration.frozen_s = now
        if message.num_output_tokens != len(state.output):
            detail = f"{worker.name} stopped after {message.num_output_tokens} tokens, {len(state.output)} are known"
            self.stop(state, now, "failed", detail)
            return
        migration.phase = "starting"
        self.rounds.observe_late(len(state.output) - migration.num_known_tokens)
        missed = self._missed(state, migration)
        self._table.send(migration.destination, Start(state.request_id, migration.attempt, missed))
        if migration.has_landed:
            self._take_over(state, migration, now)

    def _on_handed_off(self, state: RequestState, migration: Migration, message: HandedOff, now: float) -> None:
        if migration.has_landed or migration.phase not in ("freezing", "starting"):
            return
        migration.has_landed = True
        self._registry.links.worked(migration.source.hello, migration.destination.hello)
        migration.num_bytes += message.num_bytes
        totals = self._table.totals
        totals.num_transfers += 1
        totals.transfer_bytes += message.num_bytes
        totals.transfer_s += message.seconds
        if migration.phase == "starting":
            self._take_over(state, migration, now)

    def _missed(self, state: RequestState, migration: Migration) -> tuple[int, ...]:
        """The tokens that the destination lacks; they count as sent from now on."""
        missed = state.output.packed_ids[4 * migration.num_known_tokens :]
        migration.num_known_tokens = len(state.output)
        return tuple(unpack_ids(missed))

    def _take_over(self, state: RequestState, migration: Migration, now: float, *, source_lost: str = "") -> None:
        """The request belongs to the destination from now on. If the source was lost, the last pages may be missing;
        then the destination will say Failed."""
        source, destination = migration.source, migration.destination
        old_attempt = state.attempt
        del self._requests[state.request_id]
        self._table.end_migration(state, "moved")
        self._table.placed[state.request_id].moved(destination, is_whole=migration.has_landed)
        source.request_ids.discard(state.request_id)
        destination.request_ids.add(state.request_id)
        state.decode, state.attempt = destination, migration.attempt
        state.handed_off = migration.has_landed
        state.paused_since_s = migration.frozen_s
        state.num_output_at_migration = len(state.output)
        self._index.expect(destination, state, now, is_computed=False)
        self._sessions.note(state.request.session, destination, state.request.tenant)
        how = f"{migration.num_bytes} bytes in {migration.num_rounds} rounds"
        detail = f"moved from {source.name} to {destination.name}: {how}"
        if source_lost:
            state.enter("transfer", now, f"{detail}, {source_lost}", moved_to=destination.peer)
        else:
            self._table.send(source, Cancel(state.request_id, old_attempt))
            state.enter("decode", now, detail, moved_to=destination.peer)
        if destination.draining:
            self._requests.add(state)

    def _on_failed(
        self, state: RequestState, migration: Migration, worker: WorkerState, reason: str, now: float
    ) -> None:
        if worker is migration.source and migration.has_landed:
            return  # the destination has all pages
        if worker is migration.destination:
            result: MigrationResult = "refused" if migration.phase == "reserving" else "failed"
            if result == "refused":
                worker.ledger.exhaust()
            self.stop(state, now, result, f"{worker.name}: {reason}", silent=worker)
            return
        if migration.phase == "freezing":
            self.rounds.observe_late(len(state.output) - migration.num_known_tokens)
        self.stop(state, now, "refused" if migration.frozen_s is None else "failed", f"{worker.name}: {reason}")

    def stop(
        self, state: RequestState, now: float, result: MigrationResult, reason: str, silent: WorkerState | None = None
    ) -> None:
        """The migration is cancelled, and the request continues at its source. Unless the tries are used up, another
        migration will be tried. `silent` no longer knows the sequence, so it is sent no Cancel."""
        migration = state.migration
        assert migration is not None
        self._table.end_migration(state, result, silent)
        if migration.source_has_ticket:
            self._table.send(migration.source, Resume(state.request_id, state.attempt))
        state.record.note("decode", now, state.attempt, f"stays on {migration.source.name}: {reason}")
        self._requests.failed(state.request_id, migration.destination, result)

    def expire(self, now: float) -> None:
        """Stops the migrations that take too long."""
        for request_id in self._table.migration_deadlines.pop_due(now):
            state = self._table[request_id]
            assert state.migration is not None
            self.stop(state, now, "timed_out", f"{state.migration.destination.name} has not continued in time")

    def on_lost(self, state: RequestState, worker: WorkerState, now: float, reason: str) -> bool:
        """A worker that has a part in the request is lost. Returns whether the request can continue nevertheless,
        either at its source or at a destination whose source stood still already."""
        migration = state.migration
        if migration is None:
            return False
        if worker is migration.destination:
            self.stop(state, now, "lost", f"{worker.name} is lost: {reason}", silent=worker)
            return True
        if migration.phase != "starting":
            return False
        self._take_over(state, migration, now, source_lost=f"{worker.name} is lost: {reason}")
        return True

    def check_integrity(self) -> None:
        """Raises AssertionError if migrations, their workers' counts and deadlines do not add up."""
        num_migrations = 0
        for state in self._table:
            migration = state.migration
            if migration is None:
                continue
            num_migrations += 1
            assert (state.phase, state.decode) == ("decode", migration.source), state.request_id
            assert state.request_id in self._requests
            assert state.request_id in self._table.migration_deadlines
            assert state.attempt < migration.attempt <= state.last_attempt
            for worker in (migration.source, migration.destination):
                assert self._registry.get(worker.peer) is worker, worker.name
                assert state.request_id in worker.request_ids, worker.name
        assert num_migrations == len(self._table.migration_deadlines)
        assert 2 * num_migrations == sum(worker.num_migrations for worker in self._registry)
