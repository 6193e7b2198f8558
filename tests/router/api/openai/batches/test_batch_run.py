"""A batch from its input to its results, whatever happens on the way."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from slipstream.router.api.openai.batches import batch_run, batch_runner
from slipstream.router.api.openai.batches.batch import KIND, Batch
from slipstream.router.api.openai.batches.batch_run import BatchRun
from slipstream.router.api.openai.batches.batch_runner import BatchRunner, next_batch
from slipstream.router.api.openai.batches.result_files import ResultFiles
from slipstream.router.api.openai.files.file_object import FileFacts, new_file
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from tests.support.router.fake_lines import FakeLines
from tests.support.router.in_loop import in_loop

CONFIG = BatchesConfig(max_running_lines=8)
URL = "/v1/chat/completions"
BATCH_ID = "batch_1"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(batch_runner, "LOOK_EVERY_S", 0.02)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[ObjectStore]:
    store = ObjectStore(StoreConfig(directory=str(folder)))
    await store.open()
    assert not store.problem
    yield store
    await store.close()


def line(name: str, **fields: object) -> bytes:
    return orjson.dumps({"custom_id": name, "method": "POST", "url": URL, "body": {"name": name, **fields}}) + b"\n"


async def create(store: ObjectStore, text: bytes, *, batch_id: str = BATCH_ID, window_s: float = 3600) -> Batch:
    """A file and its batch, as the API makes them."""
    now = int(time.time())
    await store.put_blob(new_file("file-in", "a", now, FileFacts("in.jsonl", "batch")), [text])
    batch = Batch(batch_id, "a", "", URL, "file-in", "1h", now, int(now + window_s))
    files = ResultFiles(store.blobs, batch.id)
    await store.put(batch.stored(files.keep_input("file-in")))
    return batch


async def create_another(store: ObjectStore, batch_id: str, text: bytes) -> None:
    await store.delete("file", "file-in", "a")
    await create(store, text, batch_id=batch_id)


async def state_of(store: ObjectStore, batch_id: str = BATCH_ID) -> Batch:
    stored = await store.get(KIND, batch_id, "a")
    assert stored is not None
    return Batch.of(stored)


def results_in(store: ObjectStore, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [orjson.loads(text) for text in store.blobs.path(file_id).read_bytes().splitlines()]


async def ended(store: ObjectStore, lines: FakeLines, batch: Batch) -> Batch:
    await carried_out(BatchRun(store, lines, CONFIG, batch, Counter()))
    return await state_of(store, batch.id)


async def carried_out(run: BatchRun) -> None:
    try:
        if await run.claim():
            await run.run()
    finally:
        run.close()


@in_loop
async def test_every_line_has_a_result_in_the_order_of_the_input(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        names = [f"n{number}" for number in range(50)]
        text = b"".join(line(name, status=400 if name == "n7" else 200) for name in names)
        lines = FakeLines()
        batch = await ended(store, lines, await create(store, text + b"\n \n"))
        assert batch.status == "completed"
        assert (batch.num_total, batch.num_completed, batch.num_failed) == (50, 49, 1)
        done, failed = results_in(store, batch.output_file_id), results_in(store, batch.error_file_id)
        assert [one["custom_id"] for one in done] == [name for name in names if name != "n7"]
        assert [(one["custom_id"], one["response"]["status_code"]) for one in failed] == [("n7", 400)]
        assert done[0]["response"]["body"] == {"said": "n0", "url": URL, "key": ""}
        assert set(lines.num_served.values()) == {1}
        assert 1 < lines.most_running <= CONFIG.max_running_lines
        files = sorted(path.name for path in store.blobs.path("").iterdir())
        assert files == ["file-1-errors", "file-1-output", "file-in"]
        assert not await store.pinned(KIND)
        output = await store.get("file", batch.output_file_id or "", "a")
        assert output is not None
        assert output.blob_bytes == store.blobs.path(output.id).stat().st_size


@in_loop
async def test_a_line_that_is_refused_for_lack_of_room_is_tried_until_there_is_some(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lines = FakeLines()
        text = line("a", refusals=5) + line("b", status=500) + line("c")
        batch = await ended(store, lines, await create(store, text))
        assert (batch.status, batch.num_completed, batch.num_failed) == ("completed", 2, 1)
        assert lines.num_served == {"a": 6, "b": 3, "c": 1}


@in_loop
async def test_mistakes_in_the_input_are_named_by_line_and_nothing_is_served(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lines = FakeLines()
        text = line("a") + b"{no json\n\n" + line("a") + line("b", stream=True)
        batch = await ended(store, lines, await create(store, text))
        assert batch.status == "failed"
        assert [(one.line, one.code) for one in batch.problems] == [
            (2, "invalid_json_line"),
            (4, "duplicate_custom_id"),
            (5, "stream_in_batch"),
        ]
        assert not lines.num_served
        assert [path.name for path in store.blobs.path("").iterdir()] == ["file-in"]


@in_loop
async def test_lines_that_are_nested_too_deeply_are_mistakes(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        deep = b"[" * 500 + b"]" * 500
        text = line("a").replace(b'"a"}}', b'"a","x":' + deep + b"}}") + b'{"custom_id":' + deep + b"}\n"
        batch = await ended(store, FakeLines(), await create(store, text))
        assert batch.status == "failed"
        assert [one.code for one in batch.problems] == ["invalid_body", "invalid_custom_id"]


@in_loop
async def test_a_batch_whose_input_is_gone_fails(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batch = await create(store, line("a"))
        store.blobs.path(f"{BATCH_ID}.input").unlink()
        batch = await ended(store, FakeLines(), batch)
        assert (batch.status, [one.code for one in batch.problems]) == ("failed", ["input_unreadable"])


@in_loop
async def test_a_line_that_cannot_be_read_for_now_is_served_later(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        path = store.blobs.path(f"{BATCH_ID}.input")

        def hide() -> None:
            if path.exists():
                path.rename(tmp_path / "away")

        batch = await create(store, b"".join(line(f"n{number}") for number in range(20)))
        with pytest.raises(StoreError):
            await ended(store, FakeLines(hide), batch)
        (tmp_path / "away").rename(path)
        batch = await ended(store, FakeLines(), batch)
        assert (batch.status, batch.num_completed, batch.num_failed) == ("completed", 20, 0)


@in_loop
async def test_batches_of_one_file_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lines = FakeLines()
        await create(store, line("a", wait=True))
        files = ResultFiles(store.blobs, "batch_2")
        late = Batch("batch_2", "a", "", URL, "file-in", "1h", int(time.time()), int(time.time()))
        await store.put(late.stored(files.keep_input("file-in")))
        runner = BatchRunner(store, lines, CONFIG, Counter())
        runner.start()
        while (await state_of(store, "batch_2")).status != "expired":
            await asyncio.sleep(0.01)
        assert (await state_of(store)).status == "in_progress"
        await runner.stop()


@in_loop
async def test_a_cancelled_batch_ends_its_lines_at_once_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lines = FakeLines()
        batch = await create(store, line("a") + line("b", wait=True) + line("c", wait=True))
        run = BatchRun(store, lines, CONFIG, batch, Counter())
        task = asyncio.create_task(carried_out(run))
        while run.batch.num_completed < 1:
            await asyncio.sleep(0.01)
        await store.change(KIND, batch.id, "a", lambda one: one and Batch.of(one).cancelling(1).stored(one.blob_bytes))
        run.look()
        await task
        batch = await state_of(store)
        assert batch.status == "cancelled"
        assert (batch.num_completed, batch.num_failed, lines.num_cancelled) == (1, 0, 2)
        assert [one["custom_id"] for one in results_in(store, batch.output_file_id)] == ["a"]


@in_loop
async def test_a_batch_whose_time_is_over_says_so_for_each_line_that_was_not_served(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lines = FakeLines()
        batch = await create(store, line("a") + line("b", wait=True), window_s=2)
        batch = await ended(store, lines, batch)
        assert (batch.status, batch.num_completed, batch.num_failed) == ("expired", 1, 1)
        late = results_in(store, batch.error_file_id)
        assert [(one["custom_id"], one["response"], one["error"]["code"]) for one in late] == [
            ("b", None, "batch_expired")
        ]


class Killed(BaseException):
    """Stands for the end of the process."""


class DyingProcess(ObjectStore):
    """A store in a process that ends before or after its n-th call, of the store or to serve a line."""

    def __init__(self, folder: Path, dies_at: int) -> None:
        super().__init__(StoreConfig(directory=str(folder)))
        self.num_steps = 0
        self.dies_at = dies_at

    def step(self) -> None:
        self.num_steps += 1
        if self.num_steps == self.dies_at:
            raise Killed

    async def _run(self, name: str, executor: Executor, call: Callable[[], T]) -> T:
        self.step()
        result = await super()._run(name, executor, call)
        self.step()
        return result


@in_loop
async def test_a_process_that_dies_at_any_step_costs_no_result_and_gives_none_twice(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(3)]
    text = b"".join(line(name, status=400 if name == "n1" else 200) for name in names)
    num_deaths = 0
    for dies_at in range(1, 200):
        folder = tmp_path / str(dies_at)
        async with opened(folder) as store:
            batch = await create(store, text)
        has_died = False
        written: set[str] = set()
        for later in (dies_at, dies_at // 2 + 1, 0):
            process = DyingProcess(folder, 0)
            await process.open()
            process.num_steps, process.dies_at = 0, later
            lines = FakeLines(process.step)
            try:
                await carried_out(BatchRun(process, lines, CONFIG, batch, Counter()))
            except Killed:
                num_deaths, has_died = num_deaths + 1, True
            process.dies_at = 0
            assert not written & set(lines.num_served), "a line that had a result was served again"
            written |= set(ids_in(folder / "blobs" / f"{BATCH_ID}.output"))
            if not later:
                await check_results(process)
            await process.close()
        if not has_died:
            break
    assert num_deaths > 20


async def check_results(store: ObjectStore) -> None:
    """Three lines, of which the second failed."""
    batch = await state_of(store)
    assert (batch.status, batch.num_completed, batch.num_failed) == ("completed", 2, 1)
    done, failed = results_in(store, batch.output_file_id), results_in(store, batch.error_file_id)
    assert ([one["custom_id"] for one in done], [one["custom_id"] for one in failed]) == (["n0", "n2"], ["n1"])
    await store.in_files("settle", lambda: None)
    files = sorted(path.name for path in store.blobs.path("").iterdir())
    assert files == ["file-1-errors", "file-1-output", "file-in"]


def ids_in(path: Path) -> list[str]:
    return [orjson.loads(text)["custom_id"] for text in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


@in_loop
async def test_one_process_at_a_time_serves_a_batch_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as first, opened(tmp_path) as second:
        lines = FakeLines()
        await create(first, line("a") + line("b", wait=True))
        runners = [BatchRunner(store, lines, CONFIG, Counter()) for store in (first, second)]
        for runner in runners:
            runner.start()
            runner.look()
        while (await state_of(first)).num_completed < 1:
            await asyncio.sleep(0.01)
        assert lines.num_served == {"a": 1, "b": 1}
        await runners[0].stop()
        lines.go.set()
        while not (await state_of(first)).is_over:
            await asyncio.sleep(0.01)
        batch = await state_of(first)
        assert (batch.status, batch.num_completed) == ("completed", 2)
        assert lines.num_served["a"] == 1
        await runners[1].stop()


def named(number: int, owner: str) -> Batch:
    return Batch(f"batch_{number}", owner, "", URL, "file", "1h", number, number)


def test_the_owner_with_the_fewest_running_batches_is_next() -> None:
    flood = [named(number, "flood") for number in range(3)]
    other = named(9, "b")
    assert next_batch([*flood, other], []) == flood[0]
    assert next_batch([*flood[1:], other], flood[:1]) == other
    assert next_batch(flood[1:], [flood[0], other]) == flood[1]


@in_loop
async def test_batches_that_other_processes_serve_keep_none_waiting(tmp_path: Path) -> None:
    async with opened(tmp_path) as first, opened(tmp_path) as second:
        lines = FakeLines()
        config = BatchesConfig(max_running=1)
        runners = [BatchRunner(store, lines, config, Counter()) for store in (first, second)]
        await create(first, line("a", wait=True), batch_id="batch_1")
        runners[0].start()
        runners[0].look()
        while not lines.num_served["a"]:
            await asyncio.sleep(0.01)
        await create_another(first, "batch_2", line("b"))
        runners[1].start()
        while not (await state_of(first, "batch_2")).is_over:
            await asyncio.sleep(0.01)
        lines.go.set()
        for runner in runners:
            await runner.stop()
