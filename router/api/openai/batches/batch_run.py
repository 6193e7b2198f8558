"""One batch, from where it is to its end. It may be given up at any step, and gone on with by another process: the
state is in the store, the results are in files, and each line has at most one result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from slipstream.router.api.openai.batches.batch import KIND, Batch, BatchProblem
from slipstream.router.api.openai.batches.batch_input import BatchInput, LineError
from slipstream.router.api.openai.batches.line_answer import MAX_TRIES, LineAnswer, without_answer
from slipstream.router.api.openai.batches.line_server import LineServer
from slipstream.router.api.openai.batches.pacing import Pacing
from slipstream.router.api.openai.batches.result_files import ResultFiles
from slipstream.router.api.openai.files.file_object import FileFacts, new_file
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.process.random_bytes import random_bytes
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError, StoreFullError
from slipstream.router.store.stored_object import StoredObject

LATE_AT_A_TIME = 1000  # lines that get their results when the time is over
PAUSE_S = 1.0  # before a line that has failed is tried again; doubled with each failure
LOOK_EVERY_S = 0.5  # how soon a cancellation by way of another process is noticed, and how old shown counts are

log = logging.getLogger(__name__)


class BatchRun:
    """Life cycle: `claim` and, if that is True, `run`, in a task that may be cancelled; then `close`. `counts` are
    lines by what became of them."""

    def __init__(
        self,
        store: ObjectStore,
        lines: LineServer,
        config: BatchesConfig,
        batch: Batch,
        counts: Counter[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._lines = lines
        self._config = config
        self._counts = counts
        self._clock = clock
        self._batch = batch
        self._files = ResultFiles(store.blobs, batch.id)
        self._input: BatchInput
        self._input_bytes = 0
        self._result_bytes = 0
        self._results: dict[str, bool] = {}  # by custom_id: whether it is a success
        self._unwritten: list[tuple[str, bool, bytes]] = []
        self._problems: tuple[BatchProblem, ...] = ()
        self._looks_now = asyncio.Event()

    @property
    def batch(self) -> Batch:
        """Its state, as far as this process knows."""
        return self._batch

    def look(self) -> None:
        """The batch has been changed in the store."""
        self._looks_now.set()

    async def claim(self) -> bool:
        """Makes this process the one that serves the batch; False: another one does, or it is over. Raises
        StoreError."""
        return await self._store.in_files("claim", self._files.claim)

    def close(self) -> None:
        """Leaves the batch to other processes. Safe to call twice."""
        self._store.files.submit(self._files.close)  # behind what may still be written

    async def run(self) -> None:
        """Serves the batch to its end. Raises StoreError, and then it may be tried again."""
        stored = await self._store.get(KIND, self._batch.id, self._batch.owner)
        if stored is not None:
            self._batch = Batch.of(stored)
            if not self._batch.is_over:
                await self._end()
        await self._store.in_files("remove", self._files.remove)
        log.info("batch %s is %s", self._batch.id, self._batch.status)

    async def _end(self) -> None:
        try:
            if await self._prepare():
                if self._batch.status == "in_progress":
                    await self._serve()
                await self._finish()
        except StoreFullError as error:
            await self._store.in_files("abandon", self._files.abandon_copies)
            problem = BatchProblem("store_full", str(error))
            await self._change(lambda batch: batch.refused((problem,), self._clock()))

    async def _prepare(self) -> bool:
        """Reads the input and the results so far. False: the batch has failed, or was cancelled before it began."""
        endpoint, config = self._batch.endpoint, self._config
        try:
            self._input_bytes = self._files.input_path.stat().st_size
            self._input = await self._store.in_files(
                "read_input",
                lambda: BatchInput.read(self._files.input_path, endpoint, config.max_lines, config.max_line_bytes),
            )
        except OSError as error:
            problem = BatchProblem("input_unreadable", f"The input cannot be read: {error.strerror}.")
            await self._change(lambda batch: batch.refused((problem,), self._clock()))
            return False
        if self._input.problems:
            problems = tuple(self._input.problems)
            await self._change(lambda batch: batch.refused(problems, self._clock()))
            return False
        self._results, self._result_bytes = await self._store.in_files("recover", self._files.recover)
        await self._change(lambda batch: self._counted(batch.begun(len(self._input), self._clock())))
        return True

    async def _serve(self) -> None:
        """Serves the lines that have no result, until there is none, it is cancelled or its time is over."""
        todo = deque((index, 0) for index, name in enumerate(self._input.custom_ids) if name not in self._results)
        pacing = Pacing(self._config.max_running_lines)
        running: dict[asyncio.Task[LineAnswer], tuple[int, int, float]] = {}
        looking = asyncio.create_task(self._look_on())
        try:
            while (todo or running) and not looking.done():
                now = time.monotonic()
                while todo and len(running) < pacing.window and now >= pacing.not_before_s:
                    index, num_tries = todo.popleft()
                    running[asyncio.create_task(self._answer_of(index, num_tries))] = index, num_tries + 1, now
                waits_s = max(pacing.not_before_s - now, 0.0) if todo and len(running) < pacing.window else None
                await asyncio.wait((looking, *running), timeout=waits_s, return_when="FIRST_COMPLETED")
                for task in [task for task in running if task.done()]:
                    index, num_tries, sent_s = running.pop(task)
                    answer = task.result()
                    if answer.is_refused_for_now:
                        todo.appendleft((index, num_tries - 1))
                        pacing.refused(sent_s, answer.retry_in_s, time.monotonic())
                        self._counts["retried"] += 1
                    elif answer.may_be_accident and num_tries < MAX_TRIES:
                        todo.append((index, num_tries))
                        self._counts["retried"] += 1
                    else:
                        pacing.answered()
                        self._keep(index, answer)
                await self._write()
        finally:
            looking.cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(looking, *running, return_exceptions=True)
        if looking.done() and not looking.cancelled():
            looking.result()  # raises what it has failed with

    async def _answer_of(self, index: int, num_failures: int) -> LineAnswer:
        """Raises StoreError."""
        if num_failures:
            await asyncio.sleep(PAUSE_S * 2 ** (num_failures - 1))
        try:
            line = await self._store.in_files("read_line", lambda: self._input.line(index, self._batch.endpoint))
        except OSError as error:  # perhaps it can be read later; a line is to get no result by that
            raise StoreError(f"{self._files.input_path} cannot be read: {error.strerror}") from error
        except LineError as error:
            body = b'{"error":{"message":"The line could not be read again.","type":"server_error"}}'
            log.error("batch %s: line %d: %s", self._batch.id, self._input.numbers[index], error)
            return LineAnswer(400, body, "")
        return await self._lines.serve(self._batch.key_digest, line.url, line.body)

    def _keep(self, index: int, answer: LineAnswer) -> None:
        name = self._input.custom_ids[index]
        self._unwritten.append((name, answer.is_success, answer.result(new_result_id(), name)))

    async def _write(self) -> None:
        """Has the results in the files that came since."""
        for is_success in (True, False):
            found = [(name, line) for name, success, line in self._unwritten if success is is_success]
            if found:
                text = b"".join(line for _, line in found)
                await self._store.in_files("append", partial(self._files.append, is_success, text))
                self._results.update((name, is_success) for name, _ in found)
                self._result_bytes += len(text)
                self._counts["completed" if is_success else "failed"] += len(found)
        self._unwritten.clear()

    async def _look_on(self) -> None:
        """Writes how far it has come, now and then, and returns when no more lines are to be served."""
        shown = -1
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._looks_now.wait()
            self._looks_now.clear()
            if len(self._results) != shown:
                shown = len(self._results)
                try:
                    await self._change(self._counted)
                except StoreFullError as error:
                    self._problems = (BatchProblem("store_full", str(error)),)
                    return
            else:
                await self._refresh()
            if self._batch.status != "in_progress":
                return
            if self._clock() >= self._batch.expires_at:
                await self._change(lambda batch: batch.late(self._clock()))
                return

    async def _finish(self) -> None:
        """Puts the results in order, into files for the creator."""
        batch = await self._change(lambda batch: batch.finalizing(self._clock()), grows=False)
        if batch.expired_at is not None:
            await self._write_late_lines()
        positions = {name: position for position, name in enumerate(self._input.custom_ids)}
        files: list[StoredObject] = []
        for is_success, file_id in ((True, batch.coming_output_id), (False, batch.coming_errors_id)):
            if await self._store.in_files("sort", partial(self._files.sorted_copy, is_success, file_id, positions)):
                files.append(self._file(batch, is_success, file_id))
        batch = self._counted(batch).ended(self._clock(), self._problems)
        await self._store.put(*files, batch.stored(0))
        self._batch = batch

    async def _write_late_lines(self) -> None:
        late = [name for name in self._input.custom_ids if name not in self._results]
        for begin in range(0, len(late), LATE_AT_A_TIME):
            names = late[begin : begin + LATE_AT_A_TIME]
            self._unwritten += await self._store.in_files("late", partial(late_results, names))
            await self._write()

    def _file(self, batch: Batch, is_success: bool, file_id: str) -> StoredObject:
        now = int(self._clock())
        facts = FileFacts(f"{batch.id}_{'output' if is_success else 'error'}.jsonl", "batch_output")
        after_s = batch.output_expires_after_s
        expires_s = self._store.expiry_of(now) if after_s is None else now + after_s
        num_bytes = self._store.blobs.path(file_id).stat().st_size
        return new_file(file_id, batch.owner, now, facts, expires_s, num_bytes)

    def _counted(self, batch: Batch) -> Batch:
        num_completed = sum(self._results.values())
        return batch.counted(num_completed, len(self._results) - num_completed)

    async def _refresh(self) -> None:
        stored = await self._store.get(KIND, self._batch.id, self._batch.owner)
        if stored is not None:
            self._batch = Batch.of(stored)

    async def _change(self, change: Callable[[Batch], Batch], *, grows: bool = True) -> Batch:
        """Changes the state in the store, where it may have been changed meanwhile. Raises StoreError, and
        StoreFullError if it `grows`: the bytes of the results so far count from then on."""

        def changed(stored: StoredObject | None) -> StoredObject | None:
            if stored is None:
                return None
            batch = Batch.of(stored)
            num_bytes = self._input_bytes + self._result_bytes if grows else stored.blob_bytes
            return stored if batch.is_over else change(batch).stored(num_bytes)

        stored = await self._store.change(KIND, self._batch.id, self._batch.owner, changed)
        if stored is not None:
            self._batch = Batch.of(stored)
        return self._batch


def late_results(names: Sequence[str]) -> list[tuple[str, bool, bytes]]:
    """For lines that were not served in time."""
    message = "This request could not be executed before the completion window expired."
    return [(name, False, without_answer(new_result_id(), name, "batch_expired", message)) for name in names]


def new_result_id() -> str:
    return f"batch_req_{random_bytes(16).hex()}"
