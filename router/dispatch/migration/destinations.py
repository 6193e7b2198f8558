"""Where a sequence that leaves its decode worker can continue: which workers have room now, and where the rest of its
answer costs least. Sans-IO."""

from __future__ import annotations

from slipstream.router.config.router_config import MigrationConfig
from slipstream.router.dispatch.migration.migration_requests import MigrationRequest
from slipstream.router.placement.placed_request import PlacedRequests
from slipstream.router.placement.policies.shortlist import PrefixView, SessionView, shortlist
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.request_state import RequestState

MAX_CANDIDATES = 32


class Destinations:
    def __init__(
        self,
        config: MigrationConfig,
        registry: WorkerRegistry,
        index: PrefixView,
        sessions: SessionView,
        placed: PlacedRequests,
    ) -> None:
        self._config = config
        self._registry = registry
        self._index = index
        self._sessions = sessions
        self._placed = placed

    def best(
        self, state: RequestState, request: MigrationRequest, num_room_tokens: int, now: float
    ) -> WorkerState | None:
        """The worker where the rest of the answer takes the fewest seconds: pages that are not in its prefix cache have
        to be sent, and its steps take their time. None if no worker has room now. `num_room_tokens` more tokens than
        the sequence has must fit."""
        if not self._registry.has_decode_room(state.version):
            return None
        if request.to is not None:
            wanted = self._registry.get(request.to)
            return wanted if wanted is not None and self.takes(wanted, state, request, num_room_tokens, now) else None
        candidates = shortlist(state, self._registry, self._index, self._sessions, MAX_CANDIDATES)
        num_left = max(self._placed[state.request_id].remaining_tokens, 1.0)
        best: tuple[float, WorkerState] | None = None
        for worker in candidates.decodes:
            if not self.takes(worker, state, request, num_room_tokens, now):
                continue
            num_pages = worker.pages_for(state.num_tokens + num_room_tokens)
            num_missing = num_pages - candidates.cached.get(worker, 0) // worker.hello.page_tokens
            load = worker.load
            step = worker.times.decode_step_s(load.num_seqs + 1, load.context_tokens + state.num_tokens)
            cost_s = worker.times.transfer_s(num_missing).seconds + num_left * step.seconds
            if best is None or cost_s < best[0]:
                best = cost_s, worker
        return best[1] if best is not None else None

    def takes(
        self, worker: WorkerState, state: RequestState, request: MigrationRequest, num_room_tokens: int, now: float
    ) -> bool:
        """Whether the sequence can continue on the worker, and there is room for it now."""
        ledger = worker.ledger
        return (
            worker is not request.source
            and worker.peer not in request.avoid
            and worker in self._registry.workers_of("decode", state.version)
            and ledger.free_slots > 0
            and ledger.free_pages >= worker.decode_pages(state.num_tokens + num_room_tokens - 1, state.most_tokens)
            and may_migrate(worker, self._config)
            and _suits(state, request.source, worker)
            and self._registry.links.is_open(request.source.hello, worker.hello, now)
        )


def may_migrate(worker: WorkerState, config: MigrationConfig) -> bool:
    """Whether one more sequence may leave the worker or come to it: at most `max_at_once` do so at a time."""
    return worker.num_migrations < config.max_at_once


def _suits(state: RequestState, source: WorkerState, destination: WorkerState) -> bool:
    """Whether pages have the same size there, and the answer would end where it ends here."""
    ours, theirs = source.hello, destination.hello
    longest = state.num_prompt_tokens + state.request.sampling.max_tokens
    same_end = min(longest, ours.max_model_len) == min(longest, theirs.max_model_len)
    return ours.page_tokens == theirs.page_tokens and same_end
