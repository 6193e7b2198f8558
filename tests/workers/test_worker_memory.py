"""A worker program whose pages are a share of its host's memory, which a router gives and takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.router.protocol.messages import BlocksChanged, Credits, PageLimit, PagesHeld
from tests.support.workers.scripted_router import Connection, ScriptedRouter, request
from tests.support.workers.worker_process import PAGE_TOKENS, WorkerProcess

pytestmark = pytest.mark.timeout(240)  # with the start of the worker, on a busy machine

NUM_PAGES = 24


@pytest.fixture(scope="module")
def router() -> Iterator[ScriptedRouter]:
    with ScriptedRouter() as router:
        yield router


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def worker(
    request: pytest.FixtureRequest,
    router: ScriptedRouter,
    tiny_model_dir: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WorkerProcess]:
    with WorkerProcess(
        tmp_path_factory.mktemp("memory"),
        f"tp{request.param}",
        "decode",
        tiny_model_dir("llama"),
        router.port,
        tp=request.param,
        engine={"num_pages": NUM_PAGES, "max_model_len": 320},
        kv_budget_bytes=1 << 30,
    ) as worker:
        yield worker


def held(connection: Connection, num_pages: int, seq: int) -> None:
    connection.send(PageLimit(seq, num_pages))
    connection.wait(PagesHeld, lambda m: (m.ack_seq, m.num_held) == (seq, num_pages))


def resident_bytes(worker: WorkerProcess) -> int:
    """The memory of the pools of all ranks, as the kernel counts it."""
    num_kib, is_pool = 0, False
    for pid in (worker.process.pid, *worker.rank_pids()):
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            name, *values = line.split()
            if not name.endswith(":"):
                is_pool = "slipstream-kv-pool" in line
            elif is_pool and name == "Rss:":
                num_kib += int(values[0])
    return num_kib << 10


def test_it_takes_memory_within_its_limit_and_gives_back_all_of_it(
    router: ScriptedRouter, worker: WorkerProcess
) -> None:
    connection = router.connection(worker.name)
    hello = connection.hello
    assert (hello.page_limit, hello.num_pages) == (0, NUM_PAGES)
    assert connection.wait(Credits).free_pages == 0
    assert resident_bytes(worker) == 0

    waits = request("waits", range(40, 40 + 5 * PAGE_TOKENS))
    connection.generate(waits)
    held(connection, 3, seq=1)
    connection.wait(PagesHeld, lambda m: m.num_wanted >= 5)
    held(connection, 12, seq=2)
    assert connection.wait_chunks("waits", 8)[-1].finish_reason == "length"
    connection.wait(Credits, lambda m: m.free_pages == 12)
    layout = hello.layout
    page_bytes = layout.num_layers * layout.num_kv_heads * layout.head_bytes
    assert 0 < resident_bytes(worker) <= 12 * page_bytes

    held(connection, 0, seq=3)
    removed = [digest for message in connection.all(BlocksChanged) for digest in message.removed]
    assert removed
    assert resident_bytes(worker) == 0

    held(connection, NUM_PAGES, seq=4)
    again = request("again", range(40, 40 + 5 * PAGE_TOKENS))
    connection.generate(again)
    chunks = connection.wait_chunks("again", 8)
    assert chunks[-1].finish_reason == "length"
    assert [c.token_ids for c in chunks] == [c.token_ids for c in connection.chunks("waits")]
    connection.drop()
    assert router.connection(worker.name, after=connection).hello.page_limit == NUM_PAGES
