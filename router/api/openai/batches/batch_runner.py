"""Serves the batches of a store, in the processes that share it. Which of them serves a batch is decided by a lock on
a file of the batch (`ResultFiles.claim`), which ends with the process: so there is one at a time, and the next one goes
on as soon as it looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress

from slipstream.router.api.openai.batches.batch import KIND, Batch
from slipstream.router.api.openai.batches.batch_run import BatchRun
from slipstream.router.api.openai.batches.line_server import LineServer
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import ObjectName, StoredObject

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
        await self._store.wait_open()
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
                except Exception:  # a bug: it is tried again
                    log.exception("batches cannot be served")

    async def _begin(self) -> None:
        """Begins with the batches that no process serves, as far as there is room. Raises StoreError."""
        now = time.monotonic()
        self._failed = {batch_id: until_s for batch_id, until_s in self._failed.items() if until_s > now}
        waiting = WaitingBatches(
            name
            for name in await self._store.pinned_names(KIND)
            if name.id not in self._running and name.id not in self._failed
        )
        while len(self._running) < self._config.max_running:
            name = waiting.pop(run.batch.owner for run, _ in self._running.values())
            if name is None:
                return
            stored = await self._store.get(KIND, name.id, name.owner)
            if stored is not None:
                await self._begin_one(stored)

    async def _begin_one(self, stored: StoredObject) -> None:
        """Begins with a batch if no other process serves it. Raises StoreError."""
        try:
            batch = Batch.of(stored)
        except StoreError as error:
            self._note_failure(stored.id)
            log.error("%s; it is tried again in %g s", error, RETRY_S)
            return
        run = BatchRun(self._store, self._lines, self._config, batch, self._counts)
        try:
            has_begun = await run.claim()
        except BaseException:
            run.close()
            raise
        if has_begun:
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


class WaitingBatches:
    """Batches that wait, by owner. `names` are those of the batches, oldest first."""

    def __init__(self, names: Iterable[ObjectName]) -> None:
        self._by_owner: dict[str, deque[tuple[int, ObjectName]]] = {}
        for position, name in enumerate(names):
            self._by_owner.setdefault(name.owner, deque()).append((position, name))

    def pop(self, owners: Iterable[str]) -> ObjectName | None:
        """The batch to begin with while some of `owners` run: of the owner with the fewest running ones, the oldest.
        None: none is left."""
        if not self._by_owner:
            return None
        num_running = Counter(owners)
        owner = min(self._by_owner, key=lambda owner: (num_running[owner], self._by_owner[owner][0][0]))
        _, name = self._by_owner[owner].popleft()
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        return name
