"""The processes of a worker group serve one model after the other: each as a new process would, and what one has taken
is free for the next."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.router.protocol.messages import Drain
from tests.support.workers.scripted_router import Connection, ScriptedRouter, request
from tests.support.workers.swapping_worker import MODULE
from tests.support.workers.worker_process import END_TIMEOUT_S, ENGINE, TRANSFER

pytestmark = pytest.mark.timeout(240)  # with the start of two processes, on a busy machine

MODELS = ("llama", "qwen3")
NUM_LIVES = 8
NUM_PAGES = 4096  # tens of MiB in each rank: a pool that stays would show


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """What a process uses of the machine."""

    kib: int
    num_threads: int
    num_files: int

    @classmethod
    def of(cls, pid: int) -> Use:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        num_files = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(int(status["VmRSS"].split()[0]), int(status["Threads"]), num_files)


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """One model of the group: its connection, the tokens of one answer, what the group's processes used."""

    connection: Connection
    token_ids: tuple[int, ...]
    uses: tuple[Use, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Swaps:
    lives: list[Life]
    exit_code: int
    log: str


@pytest.fixture(scope="module")
def swaps(tiny_model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swaps]:
    """A group of two ranks that serves both models in turns, and in the end is to serve one that is not there."""
    folder = tmp_path_factory.mktemp("swaps")
    with ScriptedRouter() as router:

        def config(model: str, model_dir: Path) -> str:
            path = folder / f"{model}.json"
            settings = {"name": "w", "role": "decode", "model": model, "model_dir": str(model_dir), "tp": 2}
            settings |= {"router_host": "127.0.0.1", "router_port": router.port, "token": "secret"}
            settings |= {"engine": {**ENGINE, "num_pages": NUM_PAGES}, "transfer": TRANSFER}
            path.write_text(json.dumps(settings))
            return str(path)

        paths = [config(model, tiny_model_dir(model)) for model in MODELS] * (NUM_LIVES // len(MODELS))
        paths.append(config("absent", folder / "absent"))
        log = folder / "log"
        with log.open("wb") as file:
            process = subprocess.Popen([sys.executable, "-m", MODULE, *paths], stderr=file)
        try:
            lives: list[Life] = []
            while len(lives) < NUM_LIVES:
                lives.append(live(router, process.pid, lives[-1].connection if lives else None))
            exit_code = process.wait(END_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        yield Swaps(lives, exit_code, log.read_text())


def live(router: ScriptedRouter, pid: int, before: Connection | None) -> Life:
    connection = router.connection("w", before)
    connection.generate(request("r", range(40), max_tokens=8))
    chunks = connection.wait_chunks("r", 8)
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    uses = tuple(map(Use.of, pids))
    connection.send(Drain())
    connection.wait_lost()
    return Life(connection, tuple(token for chunk in chunks for token in chunk.token_ids), uses)


def test_each_model_answers_as_it_did_in_new_processes(swaps: Swaps) -> None:
    first = swaps.lives[: len(MODELS)]
    assert [life.connection.hello.model for life in swaps.lives] == list(MODELS) * (NUM_LIVES // len(MODELS))
    assert first[0].token_ids != first[1].token_ids
    for number, life in enumerate(swaps.lives):
        assert life.token_ids == first[number % len(MODELS)].token_ids


def test_the_group_keeps_its_name_and_process_and_begins_later_epochs(swaps: Swaps) -> None:
    hellos = [life.connection.hello for life in swaps.lives]
    assert {(hello.worker.name, hello.pid) for hello in hellos} == {("w", hellos[0].pid)}
    epochs = [hello.worker.epoch for hello in hellos]
    assert epochs == sorted(set(epochs))


def test_nothing_of_a_model_stays_in_any_rank(swaps: Swaps) -> None:
    for rank in range(2):
        uses = [life.uses[rank] for life in swaps.lives]
        # The second life may still import something; a pool that stays would add its own size in each life.
        assert uses[-1].kib - uses[1].kib < 16 << 10, uses
        assert uses[-1].num_files == uses[1].num_files
        assert uses[-1].num_threads == uses[1].num_threads


def test_a_model_that_cannot_be_loaded_ends_the_group_with_a_reason(swaps: Swaps) -> None:
    assert swaps.exit_code == 1
    assert "absent" in swaps.log.rsplit("WorkerFailed", 1)[-1]
