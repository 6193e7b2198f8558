"""What the router reports about itself: counts since it started, and a snapshot of the present state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.generation import ErrorKind, GenerationFinish
from slipstream.router.protocol.messages import Build, PageLayout, Role, Stats
from slipstream.router.registry.page_exchange import RefusedPairs
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.migration import MigrationResult
from slipstream.router.requests.output_length import Calibration
from slipstream.router.requests.placement_decision import PlacementReason
from slipstream.router.status.pauses import Pauses
from slipstream.router.status.prefix_status import PrefixIndexStatus
from slipstream.router.status.version_status import VersionStatus

RetryCause = Literal[
    "worker_lost", "worker_failed", "unreachable", "reserve_timeout", "worker_drained", "bad_output", "refused"
]
Outcome = Literal["stop", "length", "abort"] | ErrorKind


# What became of a conversation after an answer: its workers keep its pages, or do not; it came back, or did
# not within `paused_sessions.GONE_S`.
SessionEvent = Literal["kept", "not_kept", "returned", "gone"]


@dataclass(slots=True)
class Totals:
    """Counts since the router started. `rejections` counts requests that were refused, `finishes` those that were
    admitted and have ended."""

    placements: Counter[PlacementReason] = field(default_factory=Counter)
    retries: Counter[RetryCause] = field(default_factory=Counter)
    rejections: Counter[ErrorKind] = field(default_factory=Counter)
    finishes: Counter[Outcome] = field(default_factory=Counter)
    num_placed: Counter[int] = field(default_factory=Counter)  # requests by priority class
    wait_s: dict[int, float] = field(default_factory=dict)  # by class: seconds in all until the first placement
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_transfers: int = 0
    transfer_bytes: int = 0
    transfer_s: float = 0.0
    migrations: Counter[MigrationResult] = field(default_factory=Counter)
    migration_pauses: Pauses = field(default_factory=Pauses)
    num_rebalanced: int = 0  # migrations that were begun so that answers come faster
    sessions: Counter[SessionEvent] = field(default_factory=Counter)

    def count_wait(self, priority: int, wait_s: float) -> None:
        self.num_placed[priority] += 1
        self.wait_s[priority] = self.wait_s.get(priority, 0.0) + wait_s

    def count_finish(self, finish: GenerationFinish) -> None:
        if finish.error is not None:
            self.finishes[finish.error.kind] += 1
        else:
            assert finish.reason != "error"
            self.finishes[finish.reason] += 1


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A connected worker; `free_*` are its credits minus everything that was sent or promised to it since."""

    peer: PeerId
    role: Role
    tp: int
    pid: int
    draining: bool
    connected_s: float
    num_requests: int
    num_pages: int
    max_slots: int
    free_slots: int
    free_pages: int
    free_tokens: int
    stats: Stats | None
    version: str = ""  # of the model
    num_known_blocks: int = 0  # pages in its prefix cache, as far as the router knows
    predicted_s: tuple[tuple[str, float], ...] = ()  # for its next decode step, 1,000 prompt tokens, and 100 pages
    build: Build = field(default_factory=Build)
    layout: PageLayout = field(default_factory=PageLayout)
    reality: float = 1.0  # by which factor its first tokens come later than predicted
    model: str = ""

    @classmethod
    def of(cls, worker: WorkerState, now: float, num_known_blocks: int) -> WorkerStatus:
        hello, ledger = worker.hello, worker.ledger
        return cls(
            peer=hello.worker,
            role=hello.role,
            tp=hello.tp,
            pid=hello.pid,
            draining=worker.draining,
            connected_s=now - worker.joined_s,
            num_requests=len(worker.request_ids),
            num_pages=hello.num_pages,
            max_slots=hello.max_slots,
            free_slots=ledger.free_slots,
            free_pages=ledger.free_pages,
            free_tokens=ledger.free_tokens,
            stats=worker.stats,
            version=worker.version,
            num_known_blocks=num_known_blocks,
            predicted_s=(
                ("decode_step", worker.times.decode_step_s(worker.load.num_seqs, worker.load.context_tokens).seconds),
                ("prefill_1000_tokens", worker.times.prefill_s(1000, 0, hello.max_step_tokens).seconds),
                ("transfer_100_pages", worker.times.transfer_s(100).seconds),
            ),
            build=hello.build,
            layout=hello.layout,
            reality=worker.times.correction,
            model=hello.model,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one moment. `totals` is a copy that no longer changes."""

    queue_depth: dict[int, int]  # by priority
    num_requests: int  # queued or running
    num_requests_by_phase: dict[str, int]
    workers: tuple[WorkerStatus, ...]
    totals: Totals
    prefix_index: PrefixIndexStatus = field(default_factory=PrefixIndexStatus)
    output_forecasts: Calibration = field(default_factory=Calibration)
    versions: tuple[VersionStatus, ...] = ()
    refused_pairs: tuple[RefusedPairs, ...] = ()
    drift: tuple[str, ...] = ()  # in what workers of a version, or they and the router, differ without being kept apart
    longest_queues: dict[str, int] = field(default_factory=dict)  # by tenant, of those with most waiting requests
    closed_links: tuple[tuple[str, str], ...] = ()  # pairs of hosts (or workers of one) that exchange no pages now

    @property
    def num_waiting(self) -> int:
        return sum(self.queue_depth.values())

    @property
    def num_running(self) -> int:
        return self.num_requests - self.num_waiting
