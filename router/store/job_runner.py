"""Does the work that pinned objects of a store stand for, in the processes that share it. Which of them does a job is
decided by a claim that ends with the process, such as a lock on a file: so there is one at a time, and the next one
goes on as soon as it looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import ObjectName, StoredObject

RETRY_S = 30.0  # after which a job that could not be done is tried again

log = logging.getLogger(__name__)


class Job(Protocol):
    """Life cycle: `claim` and, if that is True, `run`, in a task that may be cancelled; then `close`."""

    async def claim(self) -> bool:
        """Makes this process the one that does it. Raises StoreError."""

    async def run(self) -> None:
        """To its end, after which its object is no longer pinned, or gone. Raises StoreError."""

    def close(self) -> None:
        """Leaves it to other processes. Safe to call twice."""


J = TypeVar("J", bound=Job)


class Running(NamedTuple, Generic[J]):
    owner: str
    job: J
    task: asyncio.Task[None]


class JobRunner(Generic[J]):
    """Life cycle: `start`, then `look` and `begin`, then `stop`. `make` makes the job of an object, and raises
    StoreError if that cannot be read. `look_every_s` is how soon it sees what other processes have left, or, with
    `discard`, given up: the object of a job that runs here is gone then, so `discard` is called, and the job is
    cancelled."""

    def __init__(
        self,
        store: ObjectStore,
        kind: str,
        make: Callable[[StoredObject], J],
        max_running: int,
        look_every_s: float,
        discard: Callable[[J], None] | None = None,
    ) -> None:
        self._store = store
        self._kind = kind
        self._make = make
        self._max_running = max_running
        self._look_every_s = look_every_s
        self._discard = discard
        self._running: dict[str, Running[J]] = {}
        self._failed: dict[str, float] = {}  # until when they are left alone
        self._looks_now = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins with the jobs as soon as the store is open."""
        self._watching = asyncio.create_task(self._watch())

    def look(self) -> None:
        """An object was put, or removed."""
        self._looks_now.set()

    def running(self, job_id: str) -> J | None:
        """The job, if it runs here."""
        found = self._running.get(job_id)
        return found.job if found is not None else None

    @property
    def has_room(self) -> bool:
        return self._watching is not None and len(self._running) < self._max_running

    def begin(self, stored: StoredObject, job: J) -> None:
        """Does a job that is claimed."""
        self._running[stored.id] = Running(stored.owner, job, asyncio.create_task(self._run(stored.id, job)))

    async def stop(self) -> None:
        """Gives up the jobs, for the next process to go on with. Safe to call twice."""
        running = list(self._running.values())
        tasks = [one.task for one in running]
        if self._watching is not None:
            tasks.append(self._watching)
            self._watching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in running:
            one.job.close()

    async def _watch(self) -> None:
        await self._store.wait_open()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_every_s):
                    await self._looks_now.wait()
            self._looks_now.clear()
            try:
                await self._look_through()
            except StoreError as error:
                log.warning("what the store has of the kind %r cannot be served: %s", self._kind, error)
            except Exception:  # a bug: it looks again
                log.exception("what the store has of the kind %r cannot be served", self._kind)

    async def _look_through(self) -> None:
        """Ends what is no longer wanted, and begins with what no process does, as far as there is room. Raises
        StoreError."""
        if self._discard is None and not self.has_room:
            return
        before = set(self._running)  # what begins while the store is read may not be among what is read
        pinned = await self._store.pinned_names(self._kind)
        if self._discard is not None:
            self._end_unwanted(before - {name.id for name in pinned})
        now = time.monotonic()
        self._failed = {job_id: until_s for job_id, until_s in self._failed.items() if until_s > now}
        waiting = WaitingJobs(name for name in pinned if name.id not in self._running and name.id not in self._failed)
        while self.has_room and (name := waiting.pop(one.owner for one in self._running.values())) is not None:
            stored = await self._store.get(self._kind, name.id, name.owner)
            if stored is not None:
                await self._claim(stored)

    async def _claim(self, stored: StoredObject) -> None:
        """Begins with a job if no other process does it. Raises StoreError."""
        try:
            job = self._make(stored)
        except StoreError as error:
            self._note_failure(stored.id)
            log.error("%s is tried again in %g s: %s", stored.id, RETRY_S, error)
            return
        has_begun = False
        try:
            if await job.claim() and stored.id not in self._running:
                self.begin(stored, job)
                has_begun = True
        finally:
            if not has_begun:
                job.close()

    def _end_unwanted(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            running = self._running.get(job_id)
            if running is not None and self._discard is not None:
                self._discard(running.job)
                running.task.cancel()

    async def _run(self, job_id: str, job: J) -> None:
        try:
            await job.run()
        except StoreError as error:
            self._note_failure(job_id)
            log.error("%s is tried again in %g s: %s", job_id, RETRY_S, error)
        except Exception:  # a bug: other jobs go on
            self._note_failure(job_id)
            log.exception("%s is tried again in %g s", job_id, RETRY_S)
        finally:
            job.close()
            del self._running[job_id]
            self._looks_now.set()  # another one may run

    def _note_failure(self, job_id: str) -> None:
        self._failed[job_id] = time.monotonic() + RETRY_S


class WaitingJobs:
    """Jobs that wait, by owner. `names` are those of their objects, oldest first."""

    def __init__(self, names: Iterable[ObjectName]) -> None:
        self._by_owner: dict[str, deque[tuple[int, ObjectName]]] = {}
        for position, name in enumerate(names):
            self._by_owner.setdefault(name.owner, deque()).append((position, name))

    def pop(self, owners: Iterable[str]) -> ObjectName | None:
        """The job to begin with while some of `owners` run: of the owner with the fewest running ones, the oldest.
        None: none is left."""
        if not self._by_owner:
            return None
        num_running = Counter(owners)
        owner = min(self._by_owner, key=lambda owner: (num_running[owner], self._by_owner[owner][0][0]))
        _, name = self._by_owner[owner].popleft()
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        return name
