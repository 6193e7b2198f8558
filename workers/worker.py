"""A worker: the leader (rank 0) of a group that serves one copy of a model in one role."""

from __future__ import annotations

from slipstream.workers.config import WorkerConfig
from slipstream.workers.group import GroupAddress
from slipstream.workers.report import WorkerReport


class Worker:
    """Rank 0 of a worker group: engine, transfer agent, router connection, and the control links to the other ranks.

    How a host (a Ray actor or `python -m slipstream.workers.main`) uses it:

        worker = Worker(config)             cheap; no torch yet
        address = worker.prepare()          binds the group's ports; GroupAddress, or None if config.tp == 1
        ... start RankWorker(config, rank, address) in its own process for rank 1 .. tp-1 ...
        worker.run()                        blocks in the calling thread till drained, stopped or failed

    `run` returns normally after a drain or a stop and raises `WorkerFailed` otherwise; either way the process
    should end then: an actor host calls `os._exit` or returns from main. Everything else may be called from any
    thread at any time.
    """

    def __init__(self, config: WorkerConfig) -> None: ...

    def prepare(self) -> GroupAddress | None:
        """Binds the ports where the other ranks meet this one. Idempotent. Raises OSError if `config.host` is not ours."""

    def run(self) -> None:
        """Loads, connects, serves. Raises WorkerFailed: the model cannot be loaded, a rank died, the engine broke, the
        router rejected the worker."""

    def stop(self, *, drain: bool = True) -> None:
        """Asks `run` to return: after what is running has finished (at most `config.drain_s`), or at once."""

    def redirect(self, host: str, port: int) -> None:
        """The router listens elsewhere from now on; used at the next (re)connection."""

    def report(self) -> WorkerReport:
        """Never blocks; cheap enough to poll."""
