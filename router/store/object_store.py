"""The store as the APIs see it: awaitable, and nothing blocks the event loop.

    DIRECTORY/objects.sqlite    objects, see `schema`
    DIRECTORY/blobs/            files, see `blob_folder`

All front processes of a router have the same directory open, and so has the router's next incarnation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from slipstream.router.config.store_config import StoreConfig
from slipstream.router.store.blob_folder import BlobFolder, NewBlob
from slipstream.router.store.object_database import Change, Condition, ObjectDatabase
from slipstream.router.store.store_errors import StoreBusyError, StoreError, StoreFullError, StoreGoneError
from slipstream.router.store.stored_object import ObjectName, Page, StoreCounts, StoredObject

EXPIRE_EVERY_S = 60.0
OPEN_AGAIN_S = 30.0  # after which a store that could not be opened is tried again
WAITS_TO_OPEN_S = 5.0  # how long a call waits for a store that is being opened
SWEEP_AT_A_TIME = 256  # files, between which other calls with files have their turns
MAX_WAITING = 4096  # calls of this process
WRITE_AT_A_TIME = 1 << 20  # bytes of a blob

log = logging.getLogger(__name__)

T = TypeVar("T")


class ObjectStore:
    """Life cycle: `start` or `open`, then any calls, then `close`, all on one event loop. Calls raise StoreError, also
    those of a store that could not be opened, which is tried again now and then: `problem` is why until then. `errors`
    counts what went wrong, by the name of the call."""

    def __init__(self, config: StoreConfig, errors: Counter[str] | None = None) -> None:
        self.is_configured = config.enabled and config.directory is not None
        self._config = config
        folder = Path(config.directory or "")
        self._folder = folder
        self._max_age_s = config.max_age_s
        self.blobs = BlobFolder(folder / "blobs", fsync=config.fsync)
        self._reader = ObjectDatabase(folder / "objects.sqlite", config)
        self._writer = ObjectDatabase(folder / "objects.sqlite", config)
        # One thread each: a connection belongs to a thread, a long write delays no read, and calls with files are made
        # in order.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self.files = ThreadPoolExecutor(1, thread_name_prefix="store-files")
        self._num_waiting = 0
        self._tasks: set[asyncio.Task[StoredObject]] = set()
        self._is_tried = asyncio.Event()  # it is open, or has a problem
        self._is_open = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self.errors = errors if errors is not None else Counter()
        self.problem = (
            "" if self.is_configured else "this router has none (router.store.enabled, router.store.directory)"
        )

    def start(self) -> None:
        """Begins to open the store; calls wait for it a while. Nothing is begun if it is not configured."""
        if self.is_configured and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def open(self) -> None:
        """Starts it, and waits until it is open or has a `problem`."""
        self.start()
        if self.is_configured:
            await self._is_tried.wait()

    async def wait_open(self) -> None:
        """Waits until the store is open, if need be for ever."""
        await self._is_open.wait()

    async def _keep(self) -> None:
        """Opens the store, then removes what dead processes have left and, now and then, what is too old."""
        while True:
            while not await self._try_open():
                await asyncio.sleep(OPEN_AGAIN_S)
            try:
                await self.sweep()
            except StoreError as error:
                log.warning("what dead processes left in %s could not be removed: %s", self._folder, error)
            await self._expire()

    async def _try_open(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writing, self._open)
            await loop.run_in_executor(self._reading, self._reader.open)
        except StoreError as error:
            self.errors["open"] += 1
            if str(error) != self.problem:
                log.error("the store in %s cannot be used, and what needs it is refused: %s", self._folder, error)
            self.problem = str(error)
            self._is_tried.set()
            return False
        if self.problem:
            log.info("the store can be used again")
        self.problem = ""
        self._is_tried.set()
        self._is_open.set()
        return True

    def _open(self) -> None:
        self.blobs.make()
        self._writer.open()

    async def sweep(self) -> None:
        """Removes what dead processes have left. Raises StoreError."""
        database = ObjectDatabase(self._folder / "objects.sqlite", self._config)
        call = partial(asyncio.get_running_loop().run_in_executor, self.files)
        num_removed = 0

        def is_known(object_id: str, pinned_only: bool) -> bool:
            return database.has(object_id, pinned_only=pinned_only)

        try:
            await call(database.open)
            names = await call(self.blobs.names)
            for begin in range(0, len(names), SWEEP_AT_A_TIME):
                num_removed += await call(self.blobs.sweep, names[begin : begin + SWEEP_AT_A_TIME], is_known)
        finally:
            self.files.submit(database.close)
        if num_removed:
            log.info("%d files in %s were left by a process that died, and were removed", num_removed, self._folder)

    async def close(self) -> None:
        """Safe to call twice."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.problem = self.problem or "it is closed"
        self._is_tried.set()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._reading, self._reader.close)
            await loop.run_in_executor(self._writing, self._writer.close)
            await loop.run_in_executor(self.files, int)  # what was begun there before is done
        for executor in (self._reading, self._writing, self.files):
            executor.shutdown(wait=False)

    def expiry_of(self, created_s: float) -> float:
        """When an object expires that says nothing of it."""
        return created_s + self._max_age_s

    async def put(self, *objects: StoredObject) -> None:
        """Adds objects, or replaces those of the same kind and id: all of them or, if it raises, none. They are durable
        when it returns. Raises StoreFullError."""
        await self._written("put", lambda: (None, self._writer.put(objects)))

    async def put_if(self, kind: str, object_id: str, owner: str, condition: Condition, *objects: StoredObject) -> bool:
        """As `put`, if an object, which other processes may change, is as `condition` wants it. Whether it is."""
        return await self._written("put", lambda: self._writer.put_if(kind, object_id, owner, condition, objects))

    async def put_children(self, kind: str, object_id: str, owner: str, *objects: StoredObject) -> bool:
        """Adds objects that belong to an object, which is renewed: it leaves after them, and its age begins again.
        False: there is no such object, and nothing was added. Raises StoreFullError."""
        return await self._written("put", lambda: self._writer.put_children(kind, object_id, owner, objects))

    async def put_blob(self, stored: StoredObject, parts: Iterable[bytes | memoryview]) -> StoredObject:
        """Writes a file and then its object, which is returned with its size. Raises StoreFullError. It is carried
        through if its caller is cancelled."""
        task = asyncio.create_task(self._put_blob(stored, parts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _put_blob(self, stored: StoredObject, parts: Iterable[bytes | memoryview]) -> StoredObject:
        blob = await self.in_files("put_blob", lambda: self.blobs.begin(stored.id))
        try:
            stored = stored._replace(blob_bytes=await self.in_files("put_blob", lambda: _fill(blob, parts)))
            await self.put(stored)
        except BaseException:
            self.files.submit(blob.abandon)
            raise
        self.files.submit(blob.close)
        return stored

    async def get(self, kind: str, object_id: str, owner: str) -> StoredObject | None:
        """None: there is none of this owner, or no more."""
        return await self._read("get", lambda: self._reader.get(kind, object_id, owner))

    async def change(self, kind: str, object_id: str, owner: str, change: Change) -> StoredObject | None:
        """Reads an object, has it changed, in another thread, and writes the result, with no other process in between.
        Returns the object as it is then."""
        return await self._written("change", lambda: self._writer.change(kind, object_id, owner, change))

    async def delete(self, kind: str, object_id: str, owner: str, child_kind: str = "") -> bool:
        """Removes an object and its blob, and those of `child_kind` that it is the parent of. Whether it was there."""
        return await self._written("delete", lambda: self._writer.delete(kind, object_id, owner, child_kind))

    async def page(
        self,
        kind: str,
        owner: str,
        *,
        parent: str = "",
        after: str = "",
        limit: int = 20,
        newest_first: bool = True,
        having: tuple[str, str] | None = None,
    ) -> Page | None:
        """At most `limit` objects of an owner (and of a `parent`), behind the one with the id `after`; None: that one
        is not there. `having` is the name and the value of a field that the body, a JSON object, must have. Objects of
        one `put` have its order."""
        return await self._read(
            "page", lambda: self._reader.page(kind, owner, parent, after, limit, newest_first, having)
        )

    async def chain(self, kind: str, object_id: str, owner: str, max_bytes: int) -> Page:
        """The object, its parent and so on, by one query; empty: there is no such object. If an ancestor is gone, the
        last one has a `parent`. It ends with the object that makes it `max_bytes` or more; `has_more` says so."""
        return await self._read("chain", lambda: self._reader.chain(kind, object_id, owner, max_bytes))

    async def pinned(self, kind: str) -> list[StoredObject]:
        """The pinned objects of a kind, of all owners, oldest first."""
        return await self._read("pinned", lambda: self._reader.pinned(kind))

    async def pinned_names(self, kind: str) -> list[ObjectName]:
        """The names of the pinned objects of a kind, of all owners, oldest first."""
        return await self._read("pinned", lambda: self._reader.pinned_names(kind))

    async def num_pinned(self, kind: str, owner: str) -> int:
        """How many pinned objects of a kind an owner has."""
        return await self._read("pinned", lambda: self._reader.num_pinned(kind, owner))

    async def counts(self) -> StoreCounts:
        return await self._read("counts", self._reader.counts)

    async def in_files(self, name: str, call: Callable[[], T]) -> T:
        """Makes a call that reads or writes files, in a thread of its own."""
        return await self._run(name, self.files, call)

    async def _read(self, name: str, call: Callable[[], T]) -> T:
        return await self._run(name, self._reading, call)

    async def _written(self, name: str, call: Callable[[], tuple[T, list[str]]]) -> T:
        """Makes a call that may remove objects, and removes their files."""

        def write() -> T:
            result, gone = call()
            self.blobs.remove(gone)
            return result

        return await self._run(name, self._writing, write)

    async def _run(self, name: str, executor: Executor, call: Callable[[], T]) -> T:
        if self._num_waiting >= MAX_WAITING:
            self.errors["busy"] += 1
            raise StoreBusyError(f"{self._num_waiting} calls of the store are waiting, and no more may.")
        self._num_waiting += 1
        try:
            await self._usable()
            return await asyncio.get_running_loop().run_in_executor(executor, call)
        except StoreFullError:
            self.errors["full"] += 1
            raise
        except StoreError:
            self.errors[name] += 1
            raise
        finally:
            self._num_waiting -= 1

    async def _usable(self) -> None:
        """Waits while the store is being opened. Raises StoreError if it cannot be used."""
        if not self.problem and not self._is_tried.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(WAITS_TO_OPEN_S):
                    await self._is_tried.wait()
        if self.problem or not self._is_tried.is_set():
            raise StoreError(f"The store cannot be used: {self.problem or 'it is being opened'}")

    async def _expire(self) -> None:
        """Removes what is too old, now and then. Returns if the store has to be opened anew."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            try:
                await self._written("expire", lambda: (None, self._writer.expire()))
            except StoreGoneError as error:
                log.error("what was stored in %s is lost: %s", self._folder, error)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._reading, self._reader.close)
                await loop.run_in_executor(self._writing, self._writer.close)
                return
            except StoreError as error:
                log.warning("the store could not remove what is too old: %s", error)


def _fill(blob: NewBlob, parts: Iterable[bytes | memoryview]) -> int:
    for part in parts:
        for begin in range(0, len(part), WRITE_AT_A_TIME):
            blob.write(part[begin : begin + WRITE_AT_A_TIME])
    return blob.finish()
