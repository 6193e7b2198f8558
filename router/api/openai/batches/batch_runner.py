"""Serves the batches of a store, in the processes that share it. Which of them serves a batch is decided by a lock on
its results (`ResultFiles.claim`), which ends with the process: so there is one at a time, and the next one goes on as
soon as it looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

from slipstream.router.api.openai.batches.batch import KIND, Batch
from slipstream.router.api.openai.batches.batch_run import BatchRun
from slipstream.router.api.openai.batches.line_server import LineServer
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError

RETRY_S = 30.0  # after which a batch that could not be served is tried again
LOOK_EVERY_S = 2.0  # for batches that other processes created, or were serving when they died

log = logging.getLogger(__name__)


class BatchRunner:
    """Life cycle: `start`, then `look` and `changed`, then `stop`."""

    def __init__(self, store: ObjectStore, lines: LineServer, config: BatchesConfig, counts: Counter[str]) -> None:
        self._store = store
        self._lines = lines
        self._config = config
        self._counts = counts
        self._running: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._failed: dict[str, float] = {}  # until when they are left alone
        self._looks_now = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    def look(self) -> None:
        """A batch was created."""
        self._looks_now.set()

    def changed(self, batch_id: str) -> None:
        """A batch was changed in the store: if it runs here, it looks at once."""
        if batch_id in self._running:
            self._running[batch_id][0].look()

    async def stop(self) -> None:
        """Gives up the batches, for the next process to go on with. Safe to call twice."""
        runs = list(self._running.values())
        tasks = [task for _, task in runs]
        if self._watching is not None:
            tasks.append(self._watching)
            self._watching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for run, _ in runs:
            run.close()

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._looks_now.wait()
            self._looks_now.clear()
            if len(self._running) < self._config.max_running:
                try:
                    await self._begin()
                except StoreError as error:
                    log.warning("batches cannot be served: %s", error)

    async def _begin(self) -> None:
        """Begins with the batches that no process serves, as far as there is room. Raises StoreError."""
        now = time.monotonic()
        self._failed = {batch_id: until_s for batch_id, until_s in self._failed.items() if until_s > now}
        waiting = [
            batch
            for batch in map(Batch.of, await self._store.pinned(KIND))
            if batch.id not in self._running and batch.id not in self._failed
        ]
        while waiting and len(self._running) < self._config.max_running:
            batch = next_batch(waiting, [run.batch for run, _ in self._running.values()])
            waiting.remove(batch)
            run = BatchRun(self._store, self._lines, self._config, batch, self._counts)
            if await run.claim():
                self._running[batch.id] = run, asyncio.create_task(self._run(batch.id, run))
            else:
                run.close()

    async def _run(self, batch_id: str, run: BatchRun) -> None:
        try:
            await run.run()
            log.info("batch %s is %s", batch_id, run.batch.status)
        except StoreError as error:
            self._note_failure(batch_id)
            log.error("batch %s is tried again in %g s: %s", batch_id, RETRY_S, error)
        except Exception:  # a bug: other batches go on
            self._note_failure(batch_id)
            log.exception("batch %s is tried again in %g s", batch_id, RETRY_S)
        finally:
            run.close()
            del self._running[batch_id]
            self._looks_now.set()  # another one may run

    def _note_failure(self, batch_id: str) -> None:
        self._failed[batch_id] = time.monotonic() + RETRY_S


def next_batch(waiting: Sequence[Batch], running: Iterable[Batch]) -> Batch:
    """The one to begin with: of the owner with the fewest running ones, the oldest."""
    num_running = Counter(batch.owner for batch in running)
    return min(waiting, key=lambda batch: num_running[batch.owner])  # the first of equals
