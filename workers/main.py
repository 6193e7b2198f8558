"""A worker group as a plain program, for machines without Ray and for tests:

    python -m slipstream.workers.main --config worker.yaml

The file (YAML or JSON) has the fields of `WorkerConfig`. With `tp` > 1 the other ranks are started as child processes.
SIGTERM and SIGINT drain, a second one ends at once. Exit codes: 0 after a drain, 1 after a failure, 2 for bad settings.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click
import yaml
from pydantic import TypeAdapter, ValidationError

from slipstream.workers.config import WorkerConfig
from slipstream.workers.group import GroupAddress
from slipstream.workers.rank import RankWorker
from slipstream.workers.report import WorkerFailed
from slipstream.workers.worker import Worker

RANK_END_TIMEOUT_S = 10.0


@click.command()
@click.option("--config", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--rank", type=int, help="Run this rank; the group's address is read from standard input.")
def main(path: Path, rank: int | None) -> None:
    """Runs one worker group until it is drained."""
    try:
        config = TypeAdapter(WorkerConfig).validate_python(yaml.safe_load(path.read_text()))
    except (ValidationError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from error
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        if rank is None:
            _run_leader(config, path)
        else:
            _run_rank(config, rank)
    except WorkerFailed as error:
        _exit(1, f"{config.name}: {error}")
    _exit(0)


def _run_leader(config: WorkerConfig, path: Path) -> None:
    worker = Worker(config)
    try:
        address = worker.prepare()
    except OSError as error:
        raise WorkerFailed(f"cannot bind {config.host}: {error}") from error
    ranks = [] if address is None else [_start_rank(path, rank, address) for rank in range(1, config.tp)]
    failures: list[WorkerFailed] = []
    # Signal handlers may run between any two instructions, in the middle of their own as well: all they do is put
    # into a queue that is made for it.
    wishes: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: wishes.put(number))

    def run() -> None:
        try:
            worker.run()
        except WorkerFailed as error:
            failures.append(error)
        finally:
            wishes.put(None)

    threading.Thread(target=run, name="worker", daemon=True).start()
    drain = True
    while wishes.get() is not None:
        worker.stop(drain=drain)
        drain = False
    for process in ranks:
        _await_rank(process)
    if failures:
        raise failures[0]


def _start_rank(path: Path, rank: int, address: GroupAddress) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slipstream.workers.main", "--config", str(path), "--rank", str(rank)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as stdin:  # not an argument: it holds a secret
        stdin.write(json.dumps(dataclasses.asdict(address)).encode())
    return process


def _await_rank(process: subprocess.Popen[bytes]) -> None:
    """Ranks end by themselves when their leader does; one that hangs is killed."""
    try:
        process.wait(RANK_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _run_rank(config: WorkerConfig, rank: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C goes to all; the leader says when it is over
    address = TypeAdapter(GroupAddress).validate_json(sys.stdin.buffer.read())
    RankWorker(config, rank, address).run()


def _exit(code: int, error: str | None = None) -> None:
    """Without waiting for threads: one may be stuck in a collective whose other end is dead."""
    if error is not None:
        print(f"error: {error}", file=sys.stderr)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
