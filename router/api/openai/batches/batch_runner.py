"""Serves the batches of a store, in the processes that share it. Which of them serves a batch is decided by a lock on
its input (`ResultFiles.claim`), which ends with the process: so there is one at a time, and the next one goes on as
soon as it looks."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from slipstream.router.api.openai.batches.batch import KIND, Batch
from slipstream.router.api.openai.batches.batch_run import BatchRun
from slipstream.router.api.openai.batches.line_server import LineServer
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError

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
        tasks = [task for _, task in self._running.values()]
        if self._watching is not None:
            tasks.append(self._watching)
            self._watching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._looks_now.wait()
            self._looks_now.clear()
            if len(self._running) >= self._config.max_running:
                continue
            try:
                active = [Batch.of(stored) for stored in await self._store.pinned(KIND)]
            except StoreError as error:
                log.warning("batches cannot be served: %s", error)
                continue
            running = [run.batch for run, _ in self._running.values()]
            for batch in next_batches(active, running, self._config.max_running):
                run = BatchRun(self._store, self._lines, self._config, batch, self._counts)
                self._running[batch.id] = run, asyncio.create_task(self._run(batch.id, run))

    async def _run(self, batch_id: str, run: BatchRun) -> None:
        try:
            if await run.run():
                log.info("batch %s is %s", batch_id, run.batch.status)
                self._looks_now.set()  # another one may run
        except StoreError as error:
            log.error("batch %s is tried again soon: %s", batch_id, error)
        except Exception:  # a bug: other batches go on
            log.exception("batch %s is tried again soon", batch_id)
        finally:
            del self._running[batch_id]


def next_batches(active: Iterable[Batch], running: Iterable[Batch], most: int) -> list[Batch]:
    """Those to begin with now, so that `most` run: of the owner with the fewest running ones, the oldest. (Some may run
    in other processes, which is found out when they are begun.)"""
    known = {batch.id for batch in running}
    num_running = Counter(batch.owner for batch in running)
    waiting = [batch for batch in active if batch.id not in known]
    chosen: list[Batch] = []
    while waiting and len(known) < most:
        batch = min(waiting, key=lambda one: num_running[one.owner])  # the first of equals, which is the oldest
        waiting.remove(batch)
        chosen.append(batch)
        known.add(batch.id)
        num_running[batch.owner] += 1
    return chosen
