"""Workers join, drain and are lost, and each time the requests on them, the prefix index, the conversations and the
versions of the model have to follow."""

from __future__ import annotations

from slipstream.router.dispatch.attempts import AttemptFlow
from slipstream.router.dispatch.migration.migration_flow import MigrationFlow
from slipstream.router.dispatch.migration.migration_scheduler import MigrationScheduler
from slipstream.router.dispatch.table.actions import Close
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.dispatch.table.versions import Versions
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.prefix.sessions import Sessions
from slipstream.router.protocol.messages import Drain, Hello, PeerLost, Role
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.request_state import RequestState


class Membership:
    """Which workers belong to the cluster. Where each of them is known, it is made known and forgotten here."""

    def __init__(
        self,
        registry: WorkerRegistry,
        table: RequestTable,
        index: PrefixIndex,
        sessions: Sessions,
        versions: Versions,
        migration_scheduler: MigrationScheduler,
        migration_flow: MigrationFlow,
        flow: AttemptFlow,
    ) -> None:
        self._registry = registry
        self._table = table
        self._index = index
        self._sessions = sessions
        self._versions = versions
        self._migration_scheduler = migration_scheduler
        self._migration_flow = migration_flow
        self._flow = flow

    def join(self, hello: Hello, now: float) -> None:
        """A worker has connected."""
        worker = WorkerState(hello, now)
        self._registry.add(worker)
        self._index.add(worker)
        self._sessions.add(worker)
        self._versions.workers_changed(now)
        self._table.find_versions(now)

    def drain(self, worker: WorkerState, now: float, next_role: Role | None, migrate: bool) -> None:
        """The worker gets no new requests and a Drain: it leaves when it is empty. Waiting requests are placed anew;
        running ones move, with `migrate`, as other workers have room."""
        self._registry.drain(worker)
        self._table.send(worker, Drain(next_role))
        states = self._table.latest_first(worker.request_ids)
        for state in states:
            if self._only_waits_for(worker, state):
                self._table.place_anew(state, now, f"{worker.name} is draining")
        if migrate:
            self._migration_scheduler.leave(
                worker, [state for state in reversed(states) if state.phase != "queued"], now
            )
        self._versions.workers_changed(now, sent_away=worker.version if next_role is None else None)
        self._table.find_versions(now)

    def lose(self, worker: WorkerState, now: float, reason: str) -> None:
        """Its connection is lost: its requests continue at their destinations, or begin another attempt."""
        self._registry.remove(worker)
        self._index.remove(worker)
        self._sessions.remove(worker)
        for other in self._registry:
            self._table.send(other, PeerLost(worker.peer))
        for state in self._table.latest_first(worker.request_ids):
            if not self._migration_flow.on_lost(state, worker, now, reason):
                self._flow.on_lost(state, worker, now, reason)
        self._versions.workers_changed(now, sent_away=worker.version if worker.draining else None)
        self._table.find_versions(now)

    def expel(self, worker: WorkerState, now: float, reason: str) -> None:
        """Closes the connection of a worker whose messages contradict our state."""
        self._table.actions.append(Close(worker.peer, reason))
        self.lose(worker, now, reason)

    def check_integrity(self) -> None:
        """Raises AssertionError if a request is on a worker that does not know of it, or the other way round."""
        for state in self._table:
            destination = state.migration.destination if state.migration is not None else None
            for involved in (state.decode, state.prefill, destination):
                assert involved is None or self._registry.get(involved.peer) is involved, state.request_id
        for worker in self._registry:
            worker.ledger.check_integrity()
            states = [self._table[request_id] for request_id in worker.request_ids]
            for state in states:
                destination = state.migration.destination if state.migration is not None else None
                assert worker in (state.decode, state.prefill, destination), worker.name
            held = {s.request_id for s in states if worker is s.prefill and not s.prefill_sent}
            assert worker.ledger.held == held, worker.name
            self._table.placed.check_load(worker, states)

    def _only_waits_for(self, worker: WorkerState, state: RequestState) -> bool:
        """Whether the worker has computed nothing of the request yet, so that another one can do it instead."""
        if worker is state.prefill:
            return not state.prefill_sent
        if worker is not state.decode or not self._registry.workers_of("decode", state.version):
            return False
        if state.phase == "placed":
            return True
        # A worker computes prompts one after the other, so all but the first have only waited.
        placed = filter(None, map(self._table.placed.get, worker.request_ids))
        waiting = {one.state: one.placed_s or 0.0 for one in placed if one.pending_on is worker}
        first = min(waiting, key=lambda s: (s.request.priority, waiting[s], s.request_id), default=None)
        return state in waiting and state is not first
