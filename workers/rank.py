"""A rank other than 0 of a tensor-parallel group."""

from __future__ import annotations

from slipstream.workers.config import WorkerConfig
from slipstream.workers.group import GroupAddress
from slipstream.workers.report import WorkerReport


class RankWorker:
    """Rank `rank` >= 1: model runner and transfer agent; runs the step plans and transfer commands of rank 0.

    rank_worker = RankWorker(config, rank, address)   # config: the leader's, address: what Worker.prepare() gave
    rank_worker.run()                                 # blocks till the leader says so or is gone

    `run` returns when the leader has ended in order and raises `WorkerFailed` otherwise. If the leader dies while
    this rank is inside a collective that does not return, the process is ended with exit code 1: a rank never
    outlives its leader.
    """

    def __init__(self, config: WorkerConfig, rank: int, address: GroupAddress) -> None: ...

    def run(self) -> None:
        """Raises WorkerFailed: the model cannot be loaded, the leader is gone."""

    def report(self) -> WorkerReport:
        """Never blocks; may be called from any thread."""
