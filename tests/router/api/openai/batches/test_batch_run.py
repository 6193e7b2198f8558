"""A batch from its input to its results, whatever happens on the way."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from slipstream.router.api.openai.batches import batch_run, batch_runner
from slipstream.router.api.openai.batches.batch import KIND, Batch
from slipstream.router.api.openai.batches.batch_run import BatchRun
from slipstream.router.api.openai.batches.batch_runner import BatchRunner
from slipstream.router.api.openai.batches.result_files import ResultFiles
from slipstream.router.api.openai.files.file_object import FileFacts, new_file
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.config.store_config import GIB, StoreConfig
from slipstream.router.store.job_runner import WaitingJobs
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.schema import ROW_BYTES
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import ObjectName, StoredObject
from tests.support.router.fake_lines import FakeLines
from tests.support.router.in_loop import in_loop
from tests.support.router.until import until

CONFIG = BatchesConfig(max_running_lines=8)
URL = "/v1/chat/completions"
BATCH_ID = "batch_1"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(batch_run, "PAUSE_S", 0.01)
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
    await store.put_blob(new_file("file-in", "a", int(time.time()), FileFacts("in.jsonl", "batch")), [text])
    return await create_another(store, batch_id, window_s)


async def create_another(store: ObjectStore, batch_id: str, window_s: float = 3600) -> Batch:
    """One more batch of the same file."""
    now = int(time.time())
    batch = Batch(batch_id, "a", "", URL, "file-in", "1h", now, int(now + window_s))
    files = ResultFiles(store.blobs, batch.id)
    await store.put(batch.stored(files.keep_input("file-in")))
    files.close()
    return batch


async def state_of(store: ObjectStore, batch_id: str = BATCH_ID) -> Batch:
    stored = await store.get(KIND, batch_id, "a")
    assert stored is not None
    return Batch.of(stored)


async def is_over(store: ObjectStore, batch_id: str = BATCH_ID) -> bool:
    return (await state_of(store, batch_id)).is_over


async def has_completed(store: ObjectStore, num_lines: int) -> bool:
    return (await state_of(store)).num_completed >= num_lines


async def store_other_input(store: ObjectStore) -> None:
    await store.delete("file", "file-in", "a")
    await store.put_blob(new_file("file-in", "a", int(time.time()), FileFacts("in.jsonl", "batch")), [line("b")])


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
async def test_a_cancelled_batch_ends_its_lines_at_once_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lines = FakeLines()
        batch = await create(store, line("a") + line("b", wait=True) + line("c", wait=True))
        run = BatchRun(store, lines, CONFIG, batch, Counter())
        task = asyncio.create_task(carried_out(run))
        await until(lambda: run.batch.num_completed >= 1)
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
        await until(lambda: has_completed(first, 1))
        assert lines.num_served == {"a": 1, "b": 1}
        await runners[0].stop()
        lines.go.set()
        await until(lambda: is_over(first))
        batch = await state_of(first)
        assert (batch.status, batch.num_completed) == ("completed", 2)
        assert lines.num_served["a"] == 1
        await runners[1].stop()


def test_the_owner_with_the_fewest_running_batches_is_next() -> None:
    flood = [ObjectName(f"batch_{number}", "flood") for number in range(3)]
    other = ObjectName("batch_9", "b")
    waiting = WaitingJobs([*flood, other])
    assert waiting.pop([]) == flood[0]
    assert waiting.pop(["flood"]) == other
    assert waiting.pop(["flood", "b"]) == flood[1]
    assert [waiting.pop([]), waiting.pop([])] == [flood[2], None]


@in_loop
async def test_batches_that_other_processes_serve_keep_none_waiting(tmp_path: Path) -> None:
    async with opened(tmp_path) as first, opened(tmp_path) as second:
        lines = FakeLines()
        config = BatchesConfig(max_running=1)
        runners = [BatchRunner(store, lines, config, Counter()) for store in (first, second)]
        await create(first, line("a", wait=True), batch_id="batch_1")
        runners[0].start()
        runners[0].look()
        await until(lambda: bool(lines.num_served["a"]))
        await store_other_input(first)
        await create_another(first, "batch_2")
        runners[1].start()
        await until(lambda: is_over(first, "batch_2"))
        lines.go.set()
        for runner in runners:
            await runner.stop()


@in_loop
async def test_batches_of_the_same_file_run_side_by_side(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lines = FakeLines()
        await create(store, line("a", wait=True))
        await create_another(store, "batch_2")
        runner = BatchRunner(store, lines, CONFIG, Counter())
        runner.start()
        await until(lambda: lines.num_running == 2)
        lines.go.set()
        for batch_id in (BATCH_ID, "batch_2"):
            await until(partial(is_over, store, batch_id))
        await runner.stop()


@in_loop
async def test_a_batch_whose_input_is_gone_fails_and_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await create(store, line("a"))
        store.blobs.path(f"{BATCH_ID}.input").unlink()
        runner = BatchRunner(store, FakeLines(), CONFIG, Counter())
        runner.start()
        await until(lambda: is_over(store))
        await runner.stop()
        batch = await state_of(store)
        assert (batch.status, [one.code for one in batch.problems]) == ("failed", ["input_unreadable"])
        await store.in_files("settle", lambda: None)
        assert [path.name for path in store.blobs.path("").iterdir()] == ["file-in"]


@in_loop
async def test_a_router_that_starts_leaves_the_input_of_a_batch_that_is_being_created(tmp_path: Path) -> None:
    async with opened(tmp_path) as first, opened(tmp_path) as second:
        now = int(time.time())
        await first.put_blob(new_file("file-in", "a", now, FileFacts("in.jsonl", "batch")), [line("a")])
        files = ResultFiles(first.blobs, BATCH_ID)
        num_bytes = files.keep_input("file-in")
        await second.sweep()
        assert files.input_path.stat().st_size == num_bytes
        files.close()
        await second.sweep()
        assert not files.input_path.exists()


@in_loop
async def test_a_batch_that_a_later_version_wrote_is_served_and_one_that_is_none_keeps_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put(StoredObject(KIND, "batch_0", "a", 1, b"[]", is_pinned=True))
        batch = await create(store, line("a"))
        later = orjson.dumps({**orjson.loads(batch.stored(0).body), "colour": "red"})
        await store.put(batch.stored(1)._replace(body=later))
        runner = BatchRunner(store, FakeLines(), CONFIG, Counter())
        runner.start()
        await until(lambda: is_over(store))
        assert (await state_of(store)).status == "completed"
        await runner.stop()


@in_loop
async def test_batches_go_on_after_a_look_that_failed_by_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        pinned_names, num_calls = store.pinned_names, 0

        async def fails_once(kind: str) -> list[ObjectName]:
            nonlocal num_calls
            num_calls += 1
            if num_calls == 1:
                raise RuntimeError("a bug")
            return await pinned_names(kind)

        monkeypatch.setattr(store, "pinned_names", fails_once)
        await create(store, line("a"))
        runner = BatchRunner(store, FakeLines(), CONFIG, Counter())
        runner.start()
        await until(lambda: is_over(store))
        await runner.stop()
        assert "cannot be served" in caplog.text


@in_loop
async def test_late_lines_are_written_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "LATE_AT_A_TIME", 10)
    async with opened(tmp_path) as store:
        sizes: list[int] = []
        append = ResultFiles.append

        def counted(files: ResultFiles, is_success: bool, text: bytes) -> None:
            sizes.append(text.count(b"\n"))
            append(files, is_success, text)

        monkeypatch.setattr(ResultFiles, "append", counted)
        text = b"".join(line(f"n{number}", wait=True) for number in range(25))
        batch = await ended(store, FakeLines(), await create(store, text, window_s=0))
        assert (batch.status, batch.num_failed, sizes) == ("expired", 25, [10, 10, 5])


@in_loop
async def test_a_batch_whose_results_have_no_room_when_it_goes_on_ends_and_says_so(tmp_path: Path) -> None:
    text = b"".join(line(f"n{number}", pad="x" * 100) for number in range(20))
    room_gib = (2 * len(text) + 5 * ROW_BYTES + 900) / GIB
    store = ObjectStore(StoreConfig(directory=str(tmp_path), max_gib=room_gib, max_tenant_gib=room_gib))
    await store.open()
    batch = await create(store, text)
    results = b"".join(
        orjson.dumps({"custom_id": f"n{number}", "response": "x" * 1000}) + b"\n" for number in range(10)
    )
    store.blobs.path(f"{BATCH_ID}.output").write_bytes(results)  # by a process that was killed before it counted them
    lines = FakeLines()
    batch = await ended(store, lines, batch)
    assert (batch.status, [one.code for one in batch.problems]) == ("failed", ["store_full"])
    assert not await store.pinned(KIND)
    await store.in_files("settle", lambda: None)
    assert [path.name for path in store.blobs.path("").iterdir()] == ["file-in"]
    await store.close()


@in_loop
async def test_a_line_that_failed_is_tried_again_after_a_pause_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        if delay_s >= 10:
            pauses.append(delay_s)
            delay_s = 0
        await sleep(delay_s)

    monkeypatch.setattr(batch_run, "PAUSE_S", 10.0)
    monkeypatch.setattr(asyncio, "sleep", noted)
    async with opened(tmp_path) as store:
        await ended(store, FakeLines(), await create(store, line("a", status=500)))
    assert [pause for pause in pauses if pause < 60] == [10, 20]
