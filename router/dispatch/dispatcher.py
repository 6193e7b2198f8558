"""Decides what the router does. Sans-IO: it takes events with a time and returns actions.

Every event method returns the actions it causes, in order. Time is float seconds of any clock that never goes back.
The rules are in docs/design/attempts.md and admission.md. The parts, in the order in which a request meets them:

    table        all unfinished requests: admission, deadlines, versions of the model, the ways out of an attempt
    queue        which request is next: priority classes, tenants, deadlines
    membership   workers that join, drain and leave, and the effects on their requests
    matching     gives waiting requests to workers with credits, by `placement`
    attempts     drives a placed request by the messages of its workers
    migration    moves running sequences to other decode workers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.attempts import AttemptFlow
from slipstream.router.dispatch.matching import match_credits
from slipstream.router.dispatch.membership import Membership
from slipstream.router.dispatch.migration.destinations import Destinations
from slipstream.router.dispatch.migration.migration_flow import MigrationFlow
from slipstream.router.dispatch.migration.migration_requests import MigrationRequests
from slipstream.router.dispatch.migration.migration_scheduler import MigrationScheduler
from slipstream.router.dispatch.migration.rebalancer import Rebalancer
from slipstream.router.dispatch.page_limits import budgeted_workers
from slipstream.router.dispatch.snapshot import signals_of, snapshot_of
from slipstream.router.dispatch.table.actions import Action
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.dispatch.table.traced_attempts import keep_work
from slipstream.router.dispatch.table.versions import Versions
from slipstream.router.page_budget.page_ledger import BudgetedWorker
from slipstream.router.placement.placer import Placer
from slipstream.router.placement.prefix.holder import BlockEventError
from slipstream.router.placement.prefix.index import NamePages, PrefixIndex
from slipstream.router.placement.prefix.sessions import Sessions
from slipstream.router.placement.retention.session_retention import SessionRetention
from slipstream.router.protocol.generation import EarlyEnd, GenerateRequest, GenerationError
from slipstream.router.protocol.messages import (
    AttemptWork,
    BlocksChanged,
    Copied,
    Credits,
    Failed,
    Frozen,
    HandedOff,
    Hello,
    PagesHeld,
    Pong,
    PromptScores,
    Reserved,
    ResyncBlocks,
    Role,
    Stats,
    StepOutput,
    StepTimes,
    WorkerMessage,
)
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.history import History
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.status import Snapshot

HISTORY_REQUESTS = 1024  # of a dispatcher that is given no history


class Dispatcher:
    """The requests and workers of one model. Records of the requests are kept in `history`, so that they can be
    explained; None: the latest `HISTORY_REQUESTS` are. For `name_pages` see `PrefixIndex`."""

    def __init__(
        self, config: DispatchConfig, history: History | None = None, name_pages: NamePages | None = None
    ) -> None:
        self.slo, self._local_prefill_max_tokens = config.slo, config.local_prefill_max_tokens
        registry = self.registry = WorkerRegistry()
        versions = self.versions = Versions(config.versions, registry)
        index = self._index = PrefixIndex(name_pages=name_pages)
        self.history = history if history is not None else History(HISTORY_REQUESTS)
        retention = self._retention = SessionRetention(config.retention, registry, index, self.history)
        table = self._table = RequestTable(config, self.history, versions, index, retention)
        sessions = Sessions()
        self._placer = Placer(config, registry, index, sessions, table.placed)
        self._attempts = AttemptFlow(table, self._placer, index, sessions, retention, registry.links)
        migration_requests = self._migration_requests = MigrationRequests()
        migration_flow = self._migration_flow = MigrationFlow(
            config.migration, registry, table, index, sessions, migration_requests
        )
        destinations = Destinations(config.migration, registry, index, sessions, table.placed)
        migration_scheduler = self._migration_scheduler = MigrationScheduler(
            config.migration, table, destinations, migration_requests, migration_flow
        )
        self._rebalancer = Rebalancer(config, registry, table, migration_requests, migration_scheduler)
        self._membership = Membership(
            registry, table, index, sessions, versions, migration_scheduler, migration_flow, self._attempts
        )
        self._wake_s: float | None = None  # when a request will have waited long enough for a better worker

    @property
    def num_requests(self) -> int:
        """How many requests have not finished."""
        return len(self._table)

    @property
    def num_waiting(self) -> int:
        """How many of them are on no worker."""
        return len(self._table.queue)

    def next_deadline(self) -> float | None:
        """When `tick` is due next; None: nothing is waiting for a deadline."""
        first = self._table.next_deadline()
        for due in (self.versions.next_deadline(), self._wake_s if self._table.queue.waiting else None):
            if due is not None and (first is None or due < first):
                first = due
        return first

    def known_blocks(self, peer: PeerId) -> frozenset[int]:
        """Ids of the blocks that a connected worker has said it holds."""
        worker = self.registry.get(peer)
        assert worker is not None, peer
        return self._index.held_blocks(worker)

    def snapshot(self, now: float) -> Snapshot:
        return snapshot_of(self._table, self.registry, self._index, self.versions, now)

    def signals(self, now: float, router_id: str = "") -> Signals:
        """The present load and service levels, for the planner. `router_id` identifies the router's process."""
        return signals_of(self._table, self.registry, self.slo, self._local_prefill_max_tokens, now, router_id)

    def budgeted_workers(self, weight: float = 1.0) -> list[BudgetedWorker]:
        """The workers that obey a limit on their pages, with what they need. `weight` is that of the model."""
        return budgeted_workers(self.registry, self._table, weight)

    def submit(self, request: GenerateRequest, now: float) -> list[Action]:
        """Queues a request. Raises AdmissionError if it is refused; then that is counted and can be explained, and
        nothing else has changed."""
        self._table.admit(request, self.registry.decode_workers, now)
        return self._settle(now)

    def cancel(self, request_id: str, now: float, reason: EarlyEnd = "abort") -> list[Action]:
        """Ends a request because its client has left or needs no more tokens. Unknown ids are ignored."""
        state = self._table.get(request_id)
        if state is not None:
            self._table.finish(state, now, reason)
        return self._settle(now)

    def turn_ended(self, request_id: str, tools: Sequence[str], now: float) -> list[Action]:
        """The answer of a request that came with a `Retention`, and has ended, calls these tools. Workers are told for
        how long to keep its pages. Unknown ids are ignored."""
        for worker, message in self._retention.turn_ended(request_id, tools, now):
            self._table.send(worker, message)
        return self._take_actions()

    def finish_all(self, error: GenerationError, now: float) -> list[Action]:
        """Ends all requests, because the router is shutting down."""
        for state in list(self._table):
            self._table.finish(state, now, "error", error=error)
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Handles the deadlines that have come. Call it at `next_deadline`; earlier or later does no harm."""
        self._migration_flow.expire(now)
        self._table.expire(now)
        self._table.find_versions(now)
        return self._settle(now)

    def follow(self, config: DispatchConfig, now: float) -> list[Action]:
        """Takes over changed settings: the policy, the service levels, and the limits for new requests. The time-outs
        of the queue and of reservations, ageing and the workers' lease stay as they were at the start."""
        self.slo, self._local_prefill_max_tokens = config.slo, config.local_prefill_max_tokens
        self._table.follow(config)
        self._placer.follow(config)
        self._retention.follow(config.retention)
        return self._settle(now)

    def set_split(self, split: Mapping[str, float] | None, now: float) -> list[Action]:
        """Sets each version's share of new requests; None: in proportion to the size of their pools. Requests that wait
        for a version without a share, and have no token yet, go to another one. Raises ValueError if the split makes no
        sense; then nothing has changed."""
        self.versions.set_split(split)
        self._table.find_versions(now)
        return self._settle(now)

    def worker_joined(self, hello: Hello, now: float) -> list[Action]:
        """A worker has connected. An earlier connection of the same identity must have been reported lost before."""
        self._membership.join(hello, now)
        return self._settle(now)

    def worker_lost(self, peer: PeerId, now: float, reason: str = "connection lost") -> list[Action]:
        """A worker's connection has ended. Unknown workers are ignored."""
        worker = self.registry.get(peer)
        if worker is not None:
            self._membership.lose(worker, now, reason)
        return self._settle(now)

    def drain(self, peer: PeerId, now: float, next_role: Role | None = None, migrate: bool = True) -> list[Action]:
        """Gives the worker no new work and sends it a Drain: it exits when it is empty, or reconnects as `next_role`.

        With `migrate` its running sequences move to other decode workers as these have room. Without it, or if there
        never is room, they run to their end where they are. Unknown workers are ignored.
        """
        worker = self.registry.get(peer)
        if worker is not None and not worker.draining:
            self._membership.drain(worker, now, next_role, migrate)
        return self._settle(now)

    def migrate(self, request_id: str, now: float, to: PeerId | None = None) -> list[Action]:
        """Moves a running request to another decode worker (to `to`, if given) once it is decoding and there is room.
        Unknown ids are ignored."""
        state = self._table.get(request_id)
        if state is not None:
            self._migration_requests.add(state, to)
        return self._settle(now)

    def worker_message(self, peer: PeerId, message: WorkerMessage, now: float) -> list[Action]:
        """Handles a worker's message. Those of unknown workers, and about old attempts, are ignored."""
        worker = self.registry.get(peer)
        if worker is None:
            return []
        match message:  # the most frequent kinds first
            case StepOutput():
                return self._on_step_output(worker, message, now)
            case Credits():
                self._on_credits(worker, message, now)
            case BlocksChanged():
                self._on_blocks_changed(worker, message, now)
            case Reserved() | HandedOff() | Copied() | Failed():
                self._on_progress(worker, message, now)
            case PromptScores():
                self._attempts.on_prompt_scores(worker, message, now)
            case Frozen():
                self._migration_flow.on_frozen(worker, message, now)
            case Stats():
                worker.stats = message
                return []
            case AttemptWork():
                keep_work(self.history, worker, message, now)
                return []
            case PagesHeld():
                worker.pages = message
                return []
            case StepTimes():
                for sample in message.samples:
                    worker.times.observe_step(sample)
                return []
            case Pong():
                return []
            case Hello():
                self._membership.expel(worker, now, "said hello twice")
            case _:
                assert_never(message)
        return self._settle(now)

    def _on_step_output(self, worker: WorkerState, message: StepOutput, now: float) -> list[Action]:
        """Passes on tokens. They free no capacity, so usually there is nothing to place: only credits make room. But on
        a draining worker, tokens are the only sign that a prompt is done and its sequence can leave."""
        num_waiting = len(self._table.queue.waiting)
        for chunk in message.chunks:
            self._attempts.on_chunk(worker, chunk, now)
        if len(self._table.queue.waiting) == num_waiting and not (worker.draining and self._migration_requests):
            return self._take_actions()
        return self._settle(now)

    def _on_credits(self, worker: WorkerState, message: Credits, now: float) -> None:
        try:
            worker.ledger.report(message)
        except ValueError as error:
            self._membership.expel(worker, now, str(error))

    def _on_blocks_changed(self, worker: WorkerState, message: BlocksChanged, now: float) -> None:
        try:
            is_missing = self._index.apply(worker, message)
        except BlockEventError as error:
            self._membership.expel(worker, now, str(error))
        else:
            if is_missing:
                self._table.send(worker, ResyncBlocks())

    def _on_progress(self, worker: WorkerState, message: Reserved | HandedOff | Copied | Failed, now: float) -> None:
        """Handles a message about an attempt. Where it is about the migration of a request, `MigrationFlow` takes it;
        else `AttemptFlow`, which drops those about old attempts."""
        migrating = self._migration_flow.find(worker, message.request_id, message.attempt)
        if migrating is not None:
            self._migration_flow.on_message(migrating, worker, message, now)
            return
        match message:
            case Reserved():
                self._attempts.on_reserved(worker, message, now)
            case HandedOff():
                self._attempts.on_handed_off(worker, message, now)
            case Failed(request_id, attempt, reason):
                state = self._table.get(request_id)
                # A sequence that has already left continues at its destination; if it cannot, that worker will say so.
                own = state if state is not None and state.attempt == attempt and worker is state.decode else None
                if own is None or not self._migration_flow.on_lost(own, worker, now, reason):
                    self._attempts.on_failed(worker, message, now)

    def _settle(self, now: float) -> list[Action]:
        """Starts the migrations and places the requests that fit now, and returns the collected actions."""
        table = self._table
        self._wake_s = None
        if self._migration_requests:
            self._migration_scheduler.begin_what_fits(now)
        self._rebalancer.rebalance(now)
        if table.queue.waiting and self.registry.decode_workers:
            self._index.expire(now)
            for version, queue in table.queue:
                wake_s = match_credits(table, version, queue, self.registry, self._placer, self._attempts.start, now)
                if wake_s is not None:
                    self._wake_s = wake_s if self._wake_s is None else min(wake_s, self._wake_s)
        return self._take_actions()

    def _take_actions(self) -> list[Action]:
        actions, self._table.actions = self._table.actions, []
        return actions

    def check_integrity(self) -> None:
        """Raises AssertionError if two parts of the state contradict each other."""
        self._table.check_integrity()
        self._migration_flow.check_integrity()
        self._index.check_integrity()
        self._membership.check_integrity()
