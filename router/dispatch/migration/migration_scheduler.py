"""Live migration: which running sequences move to other decode workers while they decode, and when. Where to is up to
`destinations`, and how they get there to `migration_flow`. While a migration request waits for room, its sequence
continues where it is. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from slipstream.router.config.router_config import MigrationConfig
from slipstream.router.dispatch.migration.destinations import Destinations, may_migrate
from slipstream.router.dispatch.migration.migration_flow import MigrationFlow
from slipstream.router.dispatch.migration.migration_requests import MigrationRequest, MigrationRequests
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.request_state import RequestState

LOOKAHEAD = 32  # migration requests that one event looks at
MAX_WITHOUT_ROOM = 4  # migration requests for which one event may find no room


class MigrationScheduler:
    """Decides which sequences move, and begins the migrations for which there is room."""

    def __init__(
        self,
        config: MigrationConfig,
        table: RequestTable,
        destinations: Destinations,
        requests: MigrationRequests,
        flow: MigrationFlow,
    ) -> None:
        self._config = config
        self._table = table
        self._destinations = destinations
        self._requests = requests
        self._flow = flow

    def leave(self, worker: WorkerState, states: Iterable[RequestState], now: float) -> None:
        """The worker drains: `states`, which it has a part in, are to leave it, and migrations to it are cancelled
        unless their source stands still already."""
        for state in states:
            migration = state.migration
            if migration is not None and migration.destination is worker:
                if migration.phase in ("reserving", "copying"):
                    self._flow.stop(state, now, "ended", f"{worker.name} is draining")
            elif migration is not None and migration.source is worker:
                request = self._requests[state.request_id]
                request.is_optional, request.to = False, None
            elif state.decode is worker:
                self._requests.add(state)

    def begin_now(self, state: RequestState, to: WorkerState, why: str, now: float) -> bool:
        """Begins a migration that the request can do without: if it fails, it is not tried again. Returns False if it
        cannot begin at once."""
        if state.decode is None or state.request_id in self._requests:
            return False
        request = MigrationRequest(state.decode, to.peer, why, is_optional=True)
        if not self._destinations.takes(to, state, request, self._flow.rounds.room_tokens(state), now):
            return False
        self._requests[state.request_id] = request
        self._flow.begin(state, request, to, now)
        return True

    def begin_what_fits(self, now: float) -> None:
        """Begins the migrations that are requested and for which there is room."""
        num_without_room = 0
        for request_id, request in list(islice(self._requests.items(), LOOKAHEAD)):
            state = self._table.get(request_id)
            if state is None or state.decode is not request.source:
                del self._requests[request_id]
            elif state.migration is None and state.phase == "decode" and may_migrate(request.source, self._config):
                destination = None
                if num_without_room < MAX_WITHOUT_ROOM:
                    destination = self._destinations.best(state, request, self._flow.rounds.room_tokens(state), now)
                if destination is not None:
                    self._flow.begin(state, request, destination, now)
                else:
                    num_without_room += 1
