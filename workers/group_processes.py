"""The processes of a worker group that runs without Ray: that of its leader, and those of its other ranks."""

from __future__ import annotations

import dataclasses
import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pydantic import TypeAdapter

from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.group.group_executor import GroupAddress
from slipstream.workers.group.rank_worker import RankWorker
from slipstream.workers.telemetry.worker_report import WorkerFailed
from slipstream.workers.worker import Worker

RANK_END_TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class _ProcessEnded:
    error: WorkerFailed | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Signal:
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class _RankEnded:
    rank: int
    code: int


_Event = _ProcessEnded | _Signal | _RankEnded


def run_leader(config: WorkerConfig, path: Path) -> None:
    """Starts the other ranks as child processes, with the settings at `path`. Raises WorkerFailed."""
    worker = Worker(config)
    try:
        address = worker.prepare()
    except OSError as error:
        raise WorkerFailed(f"cannot bind {config.host}: {error}") from error
    ranks = [] if address is None else [_start_rank(path, rank, address) for rank in range(1, config.tp)]
    # A signal handler may run between any two instructions, even in the middle of another handler, so all it does is to
    # put an event into a queue that is reentrant.
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: events.put(_Signal(number)))

    def run() -> None:
        try:
            worker.run()
            events.put(_ProcessEnded(None))
        except WorkerFailed as error:
            events.put(_ProcessEnded(error))

    def watch(rank: int, process: subprocess.Popen[bytes]) -> None:
        events.put(_RankEnded(rank, process.wait()))

    threading.Thread(target=run, name="worker", daemon=True).start()
    for rank, process in enumerate(ranks, 1):
        threading.Thread(target=watch, args=(rank, process), name=f"rank-{rank}-watch", daemon=True).start()
    failure = _follow(worker, events)
    for process in ranks:
        _await_rank(process)
    if failure is not None:
        raise failure


def _follow(worker: Worker, events: queue.SimpleQueue[_Event]) -> WorkerFailed | None:
    """Waits until the worker has ended. This is the only place that notices a rank which dies before it could join."""
    drain = True
    failure: WorkerFailed | None = None
    while True:
        match events.get():
            case _ProcessEnded(error):
                return error or failure
            case _Signal():
                worker.stop(drain=drain)
                drain = False
            case _RankEnded(rank, code) if code != 0:
                failure = WorkerFailed(f"rank {rank} ended with exit code {code}")
                if worker.report().state == "gathering":
                    worker.stop(drain=False)


def _start_rank(path: Path, rank: int, address: GroupAddress) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slipstream.workers.main", "--config", str(path), "--rank", str(rank)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as stdin:  # not passed as an argument, because it contains a secret
        stdin.write(json.dumps(dataclasses.asdict(address)).encode())
    return process


def _await_rank(process: subprocess.Popen[bytes]) -> None:
    """Waits for a rank, which ends by itself when its leader does; kills it if it hangs."""
    try:
        process.wait(RANK_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_rank(config: WorkerConfig, rank: int) -> None:
    """Runs another rank, which reads the group's address from standard input. Raises WorkerFailed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches all processes; the leader says when to end
    address = TypeAdapter(GroupAddress).validate_json(sys.stdin.buffer.read())
    RankWorker(config, rank, address).run()
