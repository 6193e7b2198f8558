"""The store on a real disk: what it keeps, for whom, how much, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.router.config.store_config import GIB, StoreConfig
from slipstream.router.store import object_store
from slipstream.router.store.blob_folder import BlobFolder
from slipstream.router.store.object_database import ObjectDatabase
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.schema import ROW_BYTES
from slipstream.router.store.store_errors import StoreError, StoreFullError
from slipstream.router.store.stored_object import StoredObject
from tests.support.router.in_loop import in_loop

NOW = time.time()


def config_at(folder: Path, **settings: float | None) -> StoreConfig:
    return replace(StoreConfig(directory=str(folder)), **settings)


async def opened(config: StoreConfig) -> ObjectStore:
    store = ObjectStore(config)
    await store.open()
    assert not store.problem
    return store


def response(name: str, owner: str = "a", body: bytes = b"{}", parent: str = "") -> StoredObject:
    return StoredObject("response", name, owner, NOW, body, parent)


@in_loop
async def test_an_object_outlives_its_store(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    await store.put(response("r1", body=b"\x00one"))
    await store.close()
    store = await opened(config_at(tmp_path))
    assert await store.get("response", "r1", "a") == response("r1", body=b"\x00one")._replace(
        expires_s=NOW + StoreConfig().max_age_s
    )
    await store.close()


def test_what_another_process_confirmed_survives_its_kill(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, sys
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.stored_object import StoredObject
from tests.support.router.in_loop import in_loop
async def main():
    store = ObjectStore(StoreConfig(directory={str(tmp_path)!r}))
    await store.open()
    for number in range(10**9):
        await store.put(StoredObject("response", f"r{{number}}", "a", {NOW}, b"x" * 100))
        os.write(1, b"%d\\n" % number)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        latest = -1
        while latest < 200:
            latest = int(process.stdout.readline())
        process.kill()
        latest = max([latest, *map(int, process.stdout.read().split(b"\n")[:-1])])

    async def found() -> tuple[StoredObject | None, int]:
        store = await opened(config_at(tmp_path))
        kept = await store.get("response", f"r{latest}", "a"), (await store.counts()).by_kind["response"]
        await store.close()
        return kept

    confirmed, num_kept = asyncio.run(found())
    assert confirmed is not None
    assert num_kept in (latest + 1, latest + 2)  # one may not have been confirmed


@in_loop
async def test_an_owner_sees_no_other_owners_objects(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    await store.put(response("r1", "a"), response("r2", "b", parent="r1"))
    assert await store.get("response", "r1", "b") is None
    assert not await store.delete("response", "r1", "b")
    assert [one.id for one in (await store.chain("response", "r2", "b", GIB)).objects] == ["r2"]
    page = await store.page("response", "b")
    assert page is not None
    assert [one.id for one in page.objects] == ["r2"]
    assert await store.page("response", "b", after="r1") is None
    with pytest.raises(StoreError, match="another owner"):
        await store.put(response("r1", "b"))
    await store.close()


@in_loop
async def test_a_chain_is_read_from_its_end_to_its_beginning_or_to_where_it_is_broken(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    await store.put(*(response(f"r{n}", parent=f"r{n - 1}" if n else "") for n in range(50)))
    chain, has_more = await store.chain("response", "r49", "a", GIB)
    assert ([one.id for one in chain], has_more) == ([f"r{n}" for n in range(49, -1, -1)], False)
    await store.delete("response", "r20", "a")
    chain, has_more = await store.chain("response", "r49", "a", GIB)
    assert (len(chain), chain[-1].parent, has_more) == (29, "r20", False)
    assert await store.chain("response", "none", "a", GIB) == ([], False)
    await store.put(response("loop", parent="loop"))
    chain, has_more = await store.chain("response", "loop", "a", GIB)
    assert (len(chain), has_more) == (10_001, True)
    await store.close()


@in_loop
async def test_what_gets_children_is_renewed_and_leaves_after_them(tmp_path: Path) -> None:
    room = 4 * (1000 + ROW_BYTES) / GIB
    settings = {"max_gib": room, "max_tenant_gib": room, "max_age_s": 3600.0}
    store = await opened(config_at(tmp_path, **settings))
    parent = StoredObject("conversation", "c", "a", NOW - 1800, b"x" * 1000)
    await store.put(parent)
    for name in ("i1", "i2", "i3", "i4", "i5"):
        item = StoredObject("item", name, "a", NOW, b"x" * 1000, "c")
        assert await store.put_children("conversation", "c", "a", item)
    found = await store.get("conversation", "c", "a")
    assert found is not None
    assert found.created_s == NOW - 1800
    assert found.expires_s is not None
    assert found.expires_s >= NOW + 3600
    page = await store.page("item", "a", parent="c")
    assert page is not None
    assert [one.id for one in page.objects] == ["i5", "i4", "i3"]
    assert not await store.put_children("conversation", "c", "b", item._replace(id="i6", owner="b"))
    assert await store.delete("conversation", "c", "a", "item")
    assert not await store.put_children("conversation", "c", "a", item)
    assert (await store.counts()).by_kind == {}
    await store.put(item)  # after the largest number that there was
    await store.close()


@in_loop
async def test_no_error_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "objects.sqlite").write_bytes(b"no database" * 1000)
    store = ObjectStore(config_at(tmp_path))
    await store.open()
    assert "objects.sqlite cannot be used" in store.problem
    assert str(tmp_path) not in store.problem
    await store.close()
    with pytest.raises(StoreError) as raised:
        BlobFolder(tmp_path / "none", fsync=False).begin("file-1")
    assert str(tmp_path) not in str(raised.value)


@in_loop
async def test_a_chain_is_read_up_to_a_number_of_bytes(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    body = b"x" * 1000
    await store.put(*(response(f"r{n}", parent=f"r{n - 1}" if n else "", body=body) for n in range(9)))
    each = len(body) + ROW_BYTES
    for max_bytes, num_read, has_more in ((1, 1, True), (3 * each, 3, True), (3 * each + 1, 4, True), (GIB, 9, False)):
        page = await store.chain("response", "r8", "a", max_bytes)
        assert ([one.id for one in page.objects], page.has_more) == ([f"r{8 - n}" for n in range(num_read)], has_more)
    assert (await store.chain("response", "r0", "a", 1)).has_more is False
    await store.close()


@in_loop
async def test_items_of_a_parent_are_listed_in_order_by_pages_and_removed_with_it(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    await store.put(StoredObject("conversation", "c", "a", NOW, b"{}"))
    await store.put(*(StoredObject("item", f"i{n}", "a", NOW, b"{}", "c") for n in range(5)))
    await store.put(StoredObject("item", "other", "a", NOW, b"{}", "d"))
    page = await store.page("item", "a", parent="c", limit=3, newest_first=False)
    assert page is not None
    assert ([one.id for one in page.objects], page.has_more) == (["i0", "i1", "i2"], True)
    page = await store.page("item", "a", parent="c", after="i2", limit=3, newest_first=False)
    assert page is not None
    assert ([one.id for one in page.objects], page.has_more) == (["i3", "i4"], False)
    page = await store.page("item", "a", parent="c", after="i3", limit=2)
    assert page is not None
    assert ([one.id for one in page.objects], page.has_more) == (["i2", "i1"], True)
    assert await store.delete("conversation", "c", "a", child_kind="item")
    assert (await store.counts()).by_kind == {"item": 1}
    await store.close()


@in_loop
async def test_over_the_limit_of_an_owner_its_oldest_objects_leave_and_no_others(tmp_path: Path) -> None:
    size = 1000 + ROW_BYTES
    store = await opened(config_at(tmp_path, max_gib=1, max_tenant_gib=3.5 * size / GIB))
    await store.put(response("b", "b", b"x" * 1000))
    for number in range(5):
        await store.put(response(f"r{number}", "a", b"x" * 1000))
    page = await store.page("response", "a", newest_first=False)
    assert page is not None
    assert [one.id for one in page.objects] == ["r2", "r3", "r4"]
    counts = await store.counts()
    assert (counts.num_evicted, counts.num_bytes, counts.by_kind) == (2, 4 * size, {"response": 4})
    await store.close()


@in_loop
async def test_over_the_limit_of_all_the_oldest_leave_but_pinned_ones_stay(tmp_path: Path) -> None:
    size = 1000 + ROW_BYTES
    store = await opened(config_at(tmp_path, max_gib=3.5 * size / GIB, max_tenant_gib=3.5 * size / GIB))
    await store.put(response("pinned", "a", b"x" * 1000)._replace(is_pinned=True))
    for number in range(4):
        await store.put(response(f"r{number}", "b", b"x" * 1000))
    assert await store.get("response", "pinned", "a") is not None
    assert (await store.counts()).by_kind == {"response": 3}
    before = await store.counts()
    with pytest.raises(StoreFullError, match="no room"):
        await store.put(response("large", "b", b"x" * 5000))
    assert await store.counts() == before
    assert store.errors == {"full": 1}
    await store.close()


@in_loop
async def test_a_replaced_object_counts_once(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    for size in (10, 1000, 100):
        await store.put(response("r", body=b"x" * size))
    assert (await store.counts()).num_bytes == 100 + ROW_BYTES
    assert await store.delete("response", "r", "a")
    assert (await store.counts()).num_bytes == 0
    await store.close()


@in_loop
async def test_what_is_too_old_is_not_given_out(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path, max_age_s=3600))
    await store.put(
        response("old")._replace(created_s=NOW - 7200),
        response("short")._replace(expires_s=NOW - 1),
        response("pinned")._replace(created_s=NOW - 7200, is_pinned=True),
        response("new"),
    )
    page = await store.page("response", "a")
    assert page is not None
    assert [one.id for one in page.objects] == ["new", "pinned"]
    assert await store.get("response", "old", "a") is None
    await store.close()


@in_loop
async def test_a_blob_comes_and_goes_with_its_object(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    stored = await store.put_blob(StoredObject("file", "file-1", "a", NOW, b"{}"), [b"x" * 10, memoryview(b"y" * 5)])
    assert stored.blob_bytes == 15
    assert store.blobs.path("file-1").read_bytes() == b"x" * 10 + b"y" * 5
    assert (await store.counts()).num_bytes == 15 + 2 + ROW_BYTES
    assert await store.delete("file", "file-1", "a")
    assert list(store.blobs.path("").iterdir()) == []
    await store.close()


@in_loop
async def test_a_blob_that_has_no_room_leaves_nothing(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path, max_gib=1000 / GIB, max_tenant_gib=1000 / GIB))
    with pytest.raises(StoreFullError):
        await store.put_blob(StoredObject("file", "file-1", "a", NOW, b"{}"), [b"x" * 2000])
    await store.close()
    assert list(store.blobs.path("").iterdir()) == []


@in_loop
async def test_files_that_dead_processes_left_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    first = await opened(config_at(tmp_path))
    await first.put_blob(StoredObject("file", "file-1", "a", NOW, b"{}"), [b"x"])
    for name in ("file-2.new", "file-3", "batch-1.output"):
        first.blobs.path(name).write_bytes(b"left")
    living = first.blobs.begin("file-4")
    second = await opened(config_at(tmp_path))
    await second.sweep()
    assert sorted(path.name for path in first.blobs.path("").iterdir()) == ["file-1", "file-4.new"]
    living.abandon()
    await first.close()
    await second.close()


@in_loop
async def test_a_change_is_made_with_no_other_writer_in_between(tmp_path: Path) -> None:
    stores = [await opened(config_at(tmp_path)) for _ in range(2)]
    await stores[0].put(response("r", body=b"0"))

    def add(before: StoredObject | None) -> StoredObject | None:
        assert before is not None
        return before._replace(body=b"%d" % (int(before.body) + 1))

    for _ in range(20):
        for store in stores:
            await store.change("response", "r", "a", add)
    after = await stores[0].get("response", "r", "a")
    assert after is not None
    assert after.body == b"40"
    assert await stores[1].change("response", "r", "a", lambda before: None) == after
    for store in stores:
        await store.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"no database " * 100, "not a database"), (None, "another program"), (99, "is of version 99")],
)
@in_loop
async def test_a_file_that_is_not_ours_is_reported_and_kept(
    tmp_path: Path, content: bytes | int | None, reason: str
) -> None:
    path = tmp_path / "objects.sqlite"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is None:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE notes (text)")
    else:
        store = await opened(config_at(tmp_path))
        await store.close()
        with closing(sqlite3.connect(path)) as ours:
            ours.execute(f"PRAGMA user_version = {content}")
    store = ObjectStore(config_at(tmp_path))
    await store.open()
    assert reason in store.problem
    with pytest.raises(StoreError, match=reason):
        await store.put(response("r"))
    await store.close()
    assert path.exists()


@in_loop
async def test_a_store_that_is_not_configured_says_so() -> None:
    for config in (StoreConfig(), StoreConfig(enabled=False, directory="/tmp/nowhere")):
        store = ObjectStore(config)
        await store.open()
        with pytest.raises(StoreError, match=r"router\.store"):
            await store.get("response", "r", "")
        await store.close()


@in_loop
async def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("in the way")
    store = ObjectStore(config_at(tmp_path))
    await store.open()
    assert "blobs" in store.problem
    await store.close()
    assert os.listdir(tmp_path) == ["blobs"]


@in_loop
async def test_a_store_that_could_not_be_opened_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "OPEN_AGAIN_S", 0.01)
    (tmp_path / "blobs").write_text("in the way")
    store = ObjectStore(config_at(tmp_path))
    await store.open()
    with pytest.raises(StoreError, match="blobs"):
        await store.put(response("r"))
    (tmp_path / "blobs").unlink()
    await store.wait_open()
    await store.put(response("r"))
    assert (await store.counts()).by_kind == {"response": 1}
    await store.close()


@in_loop
async def test_calls_wait_a_while_for_a_store_that_is_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open, open_database = threading.Event(), ObjectDatabase.open

    def held(database: ObjectDatabase) -> None:
        may_open.wait(10)
        open_database(database)

    monkeypatch.setattr(ObjectDatabase, "open", held)
    store = ObjectStore(config_at(tmp_path))
    store.start()
    assert not store.problem
    putting = asyncio.create_task(store.put(response("r")))
    await asyncio.sleep(0)  # it begins to wait
    monkeypatch.setattr(object_store, "WAITS_TO_OPEN_S", 0.01)
    with pytest.raises(StoreError, match="it is being opened"):
        await store.get("response", "r", "a")
    may_open.set()
    await putting
    assert await store.get("response", "r", "a") is not None
    await store.close()


def test_after_a_commit_that_failed_the_next_one_is_made(tmp_path: Path) -> None:
    database = ObjectDatabase(tmp_path / "objects.sqlite", config_at(tmp_path))
    database.open()
    with closing(sqlite3.connect(tmp_path / "objects.sqlite")) as other:
        other.execute("CREATE TABLE note (id TEXT REFERENCES object (seq) DEFERRABLE INITIALLY DEFERRED)")
        other.execute(
            "CREATE TRIGGER noted AFTER INSERT ON object WHEN new.id = 'bad' BEGIN INSERT INTO note VALUES (-1); END"
        )
        other.commit()
    database._connection.execute("PRAGMA foreign_keys = ON")  # which are checked by the commit
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        database.put([response("bad")])
    database.put([response("good")])
    assert (database.get("response", "bad", "a"), database.counts().by_kind) == (None, {"response": 1})
    database.close()


@in_loop
async def test_a_page_may_be_of_the_objects_with_a_value_in_a_field(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    bodies = [b'{"purpose":"%s"}' % (b"batch" if number % 2 else b"other") for number in range(6)]
    await store.put(*(response(f"r{number}", body=body) for number, body in enumerate(bodies)))
    page = await store.page("response", "a", limit=2, having=("purpose", "batch"))
    assert page is not None
    assert ([one.id for one in page.objects], page.has_more) == (["r5", "r3"], True)
    page = await store.page("response", "a", after="r3", limit=2, having=("purpose", "batch"))
    assert page is not None
    assert ([one.id for one in page.objects], page.has_more) == (["r1"], False)
    await store.close()


@in_loop
async def test_numbers_of_objects_are_kept_for_each_kind(tmp_path: Path) -> None:
    store = await opened(config_at(tmp_path))
    await store.put(response("r1"), response("r2", "b"), StoredObject("file", "f", "a", NOW, b"{}"))
    await store.put(response("r1", body=b"changed"))
    assert (await store.counts()).by_kind == {"file": 1, "response": 2}
    await store.delete("response", "r1", "a")
    await store.delete("file", "f", "a")
    assert (await store.counts()).by_kind == {"response": 1}
    await store.close()


def test_many_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    def open_one(folder: Path) -> None:
        database = ObjectDatabase(folder / "objects.sqlite", config_at(folder))
        database.open()
        database.close()

    with ThreadPoolExecutor(4) as pool:
        for number in range(6):
            folder = tmp_path / str(number)
            folder.mkdir()
            list(pool.map(open_one, [folder] * 4))
