"""A worker group whose processes serve one model after the other, as an actor does:

    python -m tests.support.workers.swapping_worker CONFIG CONFIG ...

Each file has the fields of a `WorkerConfig`. A drained worker goes on with the next one; after the last it ends.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path

from pydantic import TypeAdapter

from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.group.group_executor import GroupAddress
from slipstream.workers.group.rank_worker import RankWorker
from slipstream.workers.worker import Worker

MODULE = "tests.support.workers.swapping_worker"


def lead(paths: list[str]) -> None:
    worker: Worker | None = None
    ranks: list[subprocess.Popen[str]] = []
    for path in paths:
        config = read(path)
        while len(ranks) < config.tp - 1:
            command = [sys.executable, "-m", MODULE, f"--rank={len(ranks) + 1}", *paths]
            ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
        worker = Worker(config, None if worker is None else worker.report())
        address = worker.prepare()
        for rank in ranks:
            assert address is not None
            assert rank.stdin is not None
            print(json.dumps(dataclasses.asdict(address)), file=rank.stdin, flush=True)
        worker.run()
    for rank in ranks:
        assert rank.wait(30) == 0


def follow(rank: int, paths: list[str]) -> None:
    for number, path in enumerate(paths):
        address = TypeAdapter(GroupAddress).validate_json(sys.stdin.readline())
        RankWorker(read(path), rank, address, has_predecessor=number > 0).run()


def read(path: str) -> WorkerConfig:
    return TypeAdapter(WorkerConfig).validate_json(Path(path).read_bytes())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    if sys.argv[1].startswith("--rank="):
        follow(int(sys.argv[1].partition("=")[2]), sys.argv[2:])
    else:
        lead(sys.argv[1:])
