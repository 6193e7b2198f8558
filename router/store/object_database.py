"""The objects in SQLite. Every call blocks, and is one transaction.

Several processes have the same file open (WAL: readers wait for no one, writers for each other). SQLite gives what was
committed to the system at once, so that it survives the end of any process; with `fsync` it waits for the disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from slipstream.router.config.store_config import StoreConfig
from slipstream.router.store.schema import APPLICATION_ID, CHAIN, COLUMNS, GET, PUT, RENEW, ROW_BYTES, TABLES, VERSION
from slipstream.router.store.store_errors import StoreError, StoreFullError
from slipstream.router.store.stored_object import ObjectName, Page, StoreCounts, StoredObject

BUSY_S = 10.0  # how long a writer waits for those of other processes
OPEN_AGAIN_S = 0.02  # after which a file that another process opens or closes is tried again
MAX_CHAIN = 10_000  # objects of one chain
EVICT_AT_A_TIME = 64
FREE_PAGES_AT_A_TIME = 4096  # given back to the file system by one `expire`: 16 MiB
WAL_BYTES = 64 << 20  # of a log that is kept after a checkpoint

# Gets the object as it is (None: there is none); returns it as it is to be, None: it stays as it is.
Change = Callable[[StoredObject | None], StoredObject | None]
Condition = Callable[[StoredObject | None], bool]


class ObjectDatabase:
    """One connection, for one thread. Life cycle: `open`, then any calls, then `close`. Calls raise StoreError.

    Those that may remove objects return the ids of removed ones that have a blob, whose files are to be removed."""

    def __init__(self, path: Path, config: StoreConfig, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._config = config
        self._clock = clock
        self._connection: sqlite3.Connection

    def open(self) -> None:
        """Makes the file if there is none. Raises StoreError if it is not ours, of another version or damaged."""
        until_s = time.monotonic() + BUSY_S
        while True:
            try:
                self._open()
                return
            except StoreError as error:
                if not is_busy(error.__cause__) or time.monotonic() >= until_s:
                    raise
            time.sleep(OPEN_AGAIN_S)

    def _open(self) -> None:
        """Raises StoreError, also at once where SQLite waits for no other process: while one of them changes the file
        to WAL, or removes the log because it has been the last one."""
        with self._errors(), ExitStack() as cleanup:
            self._connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            cleanup.callback(self.close)
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only before there are tables
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if self._config.fsync else 'NORMAL'}")
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            if self._is_empty():
                with self._writing():
                    self._make_tables()
            self._check_version()
            cleanup.pop_all()

    def _make_tables(self) -> None:
        if self._is_empty():  # still
            for statement in statements_of(TABLES):
                self._connection.execute(statement)

    def close(self) -> None:
        with suppress(sqlite3.Error, AttributeError):
            self._connection.close()

    def put(self, objects: Sequence[StoredObject]) -> list[str]:
        """Adds objects, or replaces those of the same kind and id. If there is no room for them, the oldest others
        leave: those of the same owner first if it has too much. Raises StoreFullError, and then nothing has changed."""
        with self._writing():
            for one in objects:
                self._insert(one)
            return self._make_room({one.owner for one in objects}, {(one.kind, one.id) for one in objects})

    def put_if(
        self, kind: str, object_id: str, owner: str, condition: Condition, objects: Sequence[StoredObject]
    ) -> tuple[bool, list[str]]:
        """As `put`, if the object is as `condition` wants it. Whether it is."""
        with self._writing():
            if not condition(self.get(kind, object_id, owner)):
                return False, []
            for one in objects:
                self._insert(one)
            return True, self._make_room({one.owner for one in objects}, {(one.kind, one.id) for one in objects})

    def put_children(
        self, kind: str, object_id: str, owner: str, objects: Sequence[StoredObject]
    ) -> tuple[bool, list[str]]:
        """Adds objects that belong to the object, which is renewed: it leaves after them, and its age begins again.
        False: there is no such object, and nothing was added. Raises StoreFullError."""
        with self._writing():
            if self.get(kind, object_id, owner) is None:
                return False, []
            for one in objects:
                self._insert(one)
            self._connection.execute(RENEW, (self._clock() + self._config.max_age_s, kind, object_id, owner))
            names = {(one.kind, one.id) for one in objects}
            return True, self._make_room({owner}, {(kind, object_id), *names})

    def get(self, kind: str, object_id: str, owner: str) -> StoredObject | None:
        with self._errors():
            found = self._connection.execute(GET, (kind, object_id, owner, self._clock())).fetchone()
            return None if found is None else as_object(found)

    def change(self, kind: str, object_id: str, owner: str, change: Change) -> tuple[StoredObject | None, list[str]]:
        """Reads an object and writes what `change` makes of it, with no other writer in between. Returns the object as
        it is then."""
        with self._writing():
            before = self.get(kind, object_id, owner)
            after = change(before)
            if after is None:
                return before, []
            self._insert(after)
            return after, self._make_room({owner}, {(after.kind, after.id)})

    def delete(self, kind: str, object_id: str, owner: str, child_kind: str) -> tuple[bool, list[str]]:
        """Removes an object, with its children of `child_kind` if that is not empty. Whether it was there."""
        with self._writing():
            found = self._connection.execute(
                "DELETE FROM object WHERE kind = ? AND id = ? AND owner = ? RETURNING id, blob_bytes",
                (kind, object_id, owner),
            ).fetchall()
            if found and child_kind:
                found += self._connection.execute(
                    "DELETE FROM object WHERE parent = ? AND parent != '' AND kind = ? AND owner = ? "
                    "RETURNING id, blob_bytes",
                    (object_id, child_kind, owner),
                ).fetchall()
            return bool(found), with_blobs(found)

    def page(
        self,
        kind: str,
        owner: str,
        parent: str,
        after: str,
        limit: int,
        newest_first: bool,
        having: tuple[str, str] | None = None,
    ) -> Page | None:
        """At most `limit` objects of an owner, in or against the order in which they came; those of a `parent` if it is
        not empty, those behind the object `after` if it is not empty, and those that have a value in a field of their
        body, which is a JSON object then. None: there is no such object."""
        with self._errors():
            where, values = "kind = ? AND owner = ? AND (expires_s > ? OR is_pinned)", [kind, owner, self._clock()]
            if parent:
                where += " AND parent = ? AND parent != ''"  # the latter for the partial index `by_parent`
                values.append(parent)
            if after:
                begin = self._connection.execute(
                    "SELECT seq FROM object WHERE kind = ? AND id = ? AND owner = ?", (kind, after, owner)
                ).fetchone()
                if begin is None:
                    return None
                where += f" AND seq {'<' if newest_first else '>'} ?"
                values.append(begin[0])
            if having is not None:
                where += " AND json_extract(CAST(body AS TEXT), ?) = ?"
                values += [f"$.{having[0]}", having[1]]
            order = "DESC" if newest_first else "ASC"
            statement = f"SELECT {COLUMNS} FROM object WHERE {where} ORDER BY seq {order} LIMIT ?"
            found = self._connection.execute(statement, (*values, limit + 1)).fetchall()
            return Page([as_object(row) for row in found[:limit]], len(found) > limit)

    def chain(self, kind: str, object_id: str, owner: str, max_bytes: int) -> Page:
        """The object, its parent, that one's parent and so on, until they have `max_bytes`: then it says that there are
        more. It ends early where one is gone: then the last one has a `parent`, and there are no more."""
        with self._errors():
            values = {"kind": kind, "id": object_id, "owner": owner, "now": self._clock(), "most": MAX_CHAIN}
            found = self._connection.execute(CHAIN, {**values, "most_bytes": max_bytes})
            rows = sorted(found, key=lambda row: int(row[-2]))
            objects = [as_object(row[:-2]) for row in rows]
            if not rows or not objects[-1].parent:
                return Page(objects, has_more=False)
            depth, total = rows[-1][-2:]
            return Page(objects, has_more=depth >= MAX_CHAIN or total >= max_bytes)

    def pinned(self, kind: str) -> list[StoredObject]:
        """The pinned objects of a kind, of all owners, oldest first."""
        with self._errors():
            statement = f"SELECT {COLUMNS} FROM object WHERE kind = ? AND is_pinned = 1 ORDER BY seq"
            return [as_object(row) for row in self._connection.execute(statement, (kind,))]

    def pinned_names(self, kind: str) -> list[ObjectName]:
        """The names of the pinned objects of a kind, of all owners, oldest first."""
        with self._errors():
            statement = "SELECT id, owner FROM object WHERE kind = ? AND is_pinned = 1 ORDER BY seq"
            return [ObjectName(*row) for row in self._connection.execute(statement, (kind,))]

    def num_pinned(self, kind: str, owner: str) -> int:
        with self._errors():
            statement = "SELECT count(*) FROM object WHERE kind = ? AND owner = ? AND is_pinned = 1"
            return int(self._connection.execute(statement, (kind, owner)).fetchone()[0])

    def expire(self) -> list[str]:
        """Removes what is too old, and gives free pages back to the file system."""
        with self._writing():
            found = self._connection.execute(
                "DELETE FROM object WHERE is_pinned = 0 AND expires_s <= ? RETURNING id, blob_bytes", (self._clock(),)
            ).fetchall()
            self._count_removed("expired", len(found))
        with self._errors():
            self._connection.execute(f"PRAGMA incremental_vacuum({FREE_PAGES_AT_A_TIME})").fetchall()
        return with_blobs(found)

    def has(self, object_id: str, *, pinned_only: bool = False) -> bool:
        """Whether there is an object of this id, of any kind and owner, that may have a file."""
        with self._errors():
            statement = "SELECT 1 FROM object WHERE id = ? AND is_pinned >= ? LIMIT 1"
            return bool(self._connection.execute(statement, (object_id, int(pinned_only))).fetchone())

    def counts(self) -> StoreCounts:
        with self._errors():
            by_kind = dict(
                self._connection.execute("SELECT kind, sum(num_objects) FROM usage GROUP BY kind ORDER BY kind")
            )
            removals = dict(self._connection.execute("SELECT reason, num_objects FROM removals"))
            return StoreCounts(self._bytes_of(None), by_kind, removals.get("evicted", 0), removals.get("expired", 0))

    def _insert(self, one: StoredObject) -> None:
        expires_s = one.expires_s if one.expires_s is not None else one.created_s + self._config.max_age_s
        num_bytes = len(one.body) + one.blob_bytes + ROW_BYTES
        cursor = self._connection.execute(
            PUT,
            (
                *(one.kind, one.id, one.owner, one.created_s, one.body, one.parent),
                *(one.blob_bytes, expires_s, int(one.is_pinned), num_bytes),
            ),
        )
        if not cursor.rowcount:
            raise StoreError(f"another owner has the {one.kind} {one.id}")

    def _make_room(self, owners: set[str], keep: set[tuple[str, str]]) -> list[str]:
        """Removes the oldest objects but `keep` until owners have no more than they may, and all together."""
        gone: list[tuple[str, int]] = []
        for owner, most in [(owner, self._config.max_bytes_of(owner)) for owner in owners] + [
            (None, self._config.max_bytes)
        ]:
            while (num_bytes := self._bytes_of(owner)) > most:
                evicted = self._evict(owner, num_bytes - most, keep)
                if not evicted:
                    whose = f"of the tenant {owner!r}" if owner else "of all"
                    raise StoreFullError(
                        f"the store has no room: {num_bytes} bytes {whose} are over the limit of {most}, "
                        "and nothing older can be removed"
                    )
                gone += evicted
        self._count_removed("evicted", len(gone))
        return with_blobs(gone)

    def _evict(self, owner: str | None, num_bytes: int, keep: set[tuple[str, str]]) -> list[tuple[str, int]]:
        """Removes the oldest few, `num_bytes` of them at most or a little more."""
        where = "is_pinned = 0" if owner is None else "is_pinned = 0 AND owner = ?"
        rows = self._connection.execute(
            f"SELECT seq, kind, id, num_bytes, blob_bytes FROM object WHERE {where} ORDER BY seq LIMIT ?",
            (*(() if owner is None else (owner,)), EVICT_AT_A_TIME + len(keep)),
        ).fetchall()
        gone: list[tuple[str, int]] = []
        for seq, kind, object_id, size, blob_bytes in rows:
            if num_bytes <= 0:
                break
            if (kind, object_id) not in keep:
                self._connection.execute("DELETE FROM object WHERE seq = ?", (seq,))
                gone.append((object_id, blob_bytes))
                num_bytes -= size
        return gone

    def _bytes_of(self, owner: str | None) -> int:
        where, values = ("", ()) if owner is None else (" WHERE owner = ?", (owner,))
        return int(self._connection.execute(f"SELECT total(num_bytes) FROM usage{where}", values).fetchone()[0])

    def _count_removed(self, reason: str, num_objects: int) -> None:
        if num_objects:
            self._connection.execute(
                "UPDATE removals SET num_objects = num_objects + ? WHERE reason = ?", (num_objects, reason)
            )

    def _is_empty(self) -> bool:
        return not self._connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()

    def _check_version(self) -> None:
        (mark,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if mark != APPLICATION_ID:
            raise StoreError(f"{self._path.name} is a database of another program")
        if version != VERSION:
            raise StoreError(
                f"{self._path.name} is of version {version} and this router writes version {VERSION}: move it away, or "
                "set router.store.directory to another folder"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self._path.name} cannot be used: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that no other writer comes between."""
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")  # may fail, such as for a full disk, and leave the transaction open
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise


def is_busy(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def statements_of(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction that it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def as_object(row: tuple[str, str, str, float, bytes, str, int, float, int]) -> StoredObject:
    return StoredObject(*row[:8], is_pinned=bool(row[8]))


def with_blobs(rows: Sequence[tuple[str, int]]) -> list[str]:
    return [object_id for object_id, blob_bytes in rows if blob_bytes]
