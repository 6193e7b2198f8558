"""Who is let in, and how changes of the file of keys take effect."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream.router.access import key_ring
from slipstream.router.access.api_key import ApiKey, digest_of
from slipstream.router.access.caller import ANYBODY
from slipstream.router.access.key_file import read_keys
from slipstream.router.access.key_ring import KeyRing
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

TIMEOUT_S = 10.0


def digest(name: str) -> bytes:
    return digest_of(f"sk-{name}".encode())


def write_keys(path: Path, *names: str, expires: str = "") -> None:
    """At once, as `slipstream key` does it: a file of which a half is read would be a broken one."""
    more = f", expires: {expires}" if expires else ""
    lines = [f"  - {{name: {name}, sha256: '{digest(name).hex()}'{more}}}" for name in names]
    new = path.with_name("new")
    new.write_text("\n".join(["keys:" if lines else "keys: []", *lines, ""]))
    os.replace(new, path)


def no_matter(keys: Sequence[ApiKey]) -> None:
    pass


def ring_of(path: Path | None) -> KeyRing:
    """One that has read its file."""
    ring = KeyRing(path, None, no_matter)
    ring.open()
    return ring


def request_with(authorization: bytes | None) -> Request:
    headers = {} if authorization is None else {b"authorization": authorization}
    return Request("GET", "/", "", headers, b"", keep_alive=True, http10=False)


def test_without_a_file_everybody_is_let_in() -> None:
    ring = ring_of(None)
    assert not ring.is_on
    assert ring.authenticate(request_with(None)) is ANYBODY


@pytest.mark.parametrize("authorization", [b"Bearer sk-a", b"bearer  sk-a "])
def test_who_has_a_key_is_its_caller(tmp_path: Path, authorization: bytes) -> None:
    write_keys(tmp_path / "keys.yaml", "a", "b")
    ring = ring_of(tmp_path / "keys.yaml")
    assert (ring.is_on, ring.num_keys) == (True, 2)
    assert ring.authenticate(request_with(authorization)).name == "a"
    assert ring.caller_of(digest("b")).name == "b"


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        (None, "missing"),
        (b"Bearer ", "missing"),
        (b"Basic sk-a", "missing"),
        (b"sk-a", "missing"),
        (b"Bearer sk-c", "unknown"),
        (b"Bearer \xff", "unknown"),
        (b"Bearer sk-a", "expired"),
    ],
)
def test_who_is_not_let_in_is_counted_by_reason(tmp_path: Path, authorization: bytes | None, reason: str) -> None:
    write_keys(tmp_path / "keys.yaml", "a", expires="2020-01-01")
    ring = ring_of(tmp_path / "keys.yaml")
    with pytest.raises(HttpError) as refused:
        ring.authenticate(request_with(authorization))
    assert refused.value.status == 401
    assert ring.num_unauthenticated == {reason: 1}


def test_a_key_that_a_front_still_knows_is_refused_once_it_is_gone(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.yaml", "a")
    ring = ring_of(tmp_path / "keys.yaml")
    with pytest.raises(HttpError):
        ring.caller_of(digest("b"))
    assert ring.num_unauthenticated == {"unknown": 1}


def test_a_broken_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: [{}]")
    with pytest.raises(ValueError, match=r"keys\.yaml"):
        ring_of(tmp_path / "keys.yaml")


def watched(path: Path, work: Callable[[KeyRing, list[list[str]]], Awaitable[None]]) -> KeyRing:
    """Runs `work` with a ring that watches its file, and with the names of the keys that its follower got."""
    loaded: list[list[str]] = []
    ring: list[KeyRing] = []

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            ring.append(KeyRing(path, pool, lambda keys: loaded.append([key.name for key in keys])))
            ring[0].open()
            ring[0].watch()
            async with asyncio.timeout(TIMEOUT_S):
                await work(ring[0], loaded)
                await ring[0].close()

    asyncio.run(main())
    return ring[0]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def test_changes_take_effect_and_a_broken_or_missing_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ring, "LOOK_EVERY_S", 0.001)
    path = tmp_path / "keys.yaml"
    write_keys(path, "a")

    async def work(ring: KeyRing, loaded: list[list[str]]) -> None:
        write_keys(path, "a", "b")
        await until(lambda: loaded == [["a"], ["a", "b"]])
        path.write_text("keys: [{}]")
        await until(lambda: ring.num_reloads["failed"] == 1)
        path.unlink()
        await until(lambda: ring.num_reloads["failed"] == 2)
        assert ring.caller_of(digest("a")).name == "a"
        write_keys(path, "b")
        await until(lambda: loaded[2:] == [["b"]])
        with pytest.raises(HttpError):
            ring.caller_of(digest("a"))

    assert watched(path, work).num_reloads == {"ok": 2, "failed": 2}


def test_the_end_waits_for_a_file_that_is_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "LOOK_EVERY_S", 0.001)
    path = tmp_path / "keys.yaml"
    write_keys(path, "a")
    may_be_read = threading.Event()

    def read_when_it_may(path: Path) -> list[ApiKey]:
        assert may_be_read.wait(TIMEOUT_S)
        return read_keys(path)

    async def work(ring: KeyRing, loaded: list[list[str]]) -> None:
        monkeypatch.setattr(key_ring, "read_keys", read_when_it_may)
        write_keys(path, "b")
        await until(lambda: ring._reading is not None)
        asyncio.get_running_loop().call_later(0.01, may_be_read.set)  # while `close` waits

    assert watched(path, work).caller_of(digest("b")).name == "b"
