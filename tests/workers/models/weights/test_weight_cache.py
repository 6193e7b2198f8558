"""Packed weights in files: written once, shared, never used half written."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slipstream.workers.models.weights import weight_cache
from slipstream.workers.models.weights.weight_cache import (
    UNUSED_DAYS,
    Bytes,
    cached,
    default_directory,
    keep_newest,
    known,
)

KEY = bytes(range(32))
SIZE = 10_000
CONTENTS = np.arange(SIZE, dtype=np.uint64).astype(np.uint8)


class Filler:
    """Fills with CONTENTS and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, into: Bytes) -> None:
        self.calls += 1
        into[:] = CONTENTS


def never(into: Bytes) -> None:
    raise AssertionError("filled again")


def weights(directory: Path) -> Path:
    (path,) = directory.glob("*.weights")
    return path


@pytest.mark.parametrize("shared", [True, False])
def test_contents_are_what_was_filled_in(shared: bool, tmp_path: Path) -> None:
    contents = cached(tmp_path if shared else None, KEY, SIZE, Filler())
    assert np.array_equal(contents, CONTENTS)
    assert contents.ctypes.data % 64 == 0
    assert contents.flags.writeable is not shared


def test_the_next_one_maps_what_is_there(tmp_path: Path) -> None:
    cached(tmp_path / "not" / "yet", KEY, SIZE, Filler())
    assert np.array_equal(cached(tmp_path / "not" / "yet", KEY, SIZE, never), CONTENTS)


def test_another_key_is_another_file(tmp_path: Path) -> None:
    cached(tmp_path, KEY, SIZE, Filler())
    other = Filler()
    cached(tmp_path, bytes(32), SIZE, other)
    assert other.calls == 1
    assert len(list(tmp_path.glob("*.weights"))) == 2


OWN, OTHER = 4321, 4322  # users


def become(monkeypatch: pytest.MonkeyPatch, user: int, root: int) -> None:
    """From now on this process runs as `user`. What it has written belongs to `root` or, if that is another one, to a
    third user."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(weight_cache, "ROOT", root)


def test_a_file_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cached(tmp_path, KEY, SIZE, Filler())
    weights(tmp_path).rename(tmp_path / f"{KEY.hex()}.{OWN}.weights")
    become(monkeypatch, OWN, OTHER)
    again = Filler()
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(cached(tmp_path, KEY, SIZE, again), CONTENTS)
    assert again.calls == 1
    assert known(tmp_path, KEY) is None
    assert f"{OWN}.weights is not used: it belongs to another user" in caplog.text


def test_a_file_of_root_is_used_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, KEY, SIZE, Filler())
    become(monkeypatch, OWN, os.geteuid())
    assert np.array_equal(cached(tmp_path, KEY, SIZE, never), CONTENTS)
    assert np.array_equal(known(tmp_path, KEY), CONTENTS)


def test_a_file_that_others_may_write_to_is_written_anew(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cached(tmp_path, KEY, SIZE, Filler())
        assert weights(tmp_path).stat().st_mode & 0o777 == 0o644
        weights(tmp_path).chmod(0o664)
        again = Filler()
        cached(tmp_path, KEY, SIZE, again)
    finally:
        os.umask(before)
    assert again.calls == 1
    assert weights(tmp_path).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("suffix", ["weights", "lock"])
def test_a_pipe_in_the_place_of_a_file_holds_up_nothing(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{KEY.hex()}.{os.geteuid()}.{suffix}")
    assert known(tmp_path, KEY) is None
    assert np.array_equal(cached(tmp_path, KEY, SIZE, Filler()), CONTENTS)


def test_what_is_written_does_not_follow_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "cache").mkdir()
    link = tmp_path / "cache" / f"{KEY.hex()}.{os.geteuid()}.{os.getpid()}.part"
    link.symlink_to(victim)
    assert np.array_equal(cached(tmp_path / "cache", KEY, SIZE, Filler()), CONTENTS)
    assert victim.read_text() == "precious"


def test_a_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    link, victim = tmp_path / f"{KEY.hex()}.{os.geteuid()}.lock", tmp_path / "victim"
    link.symlink_to(victim)
    assert np.array_equal(cached(tmp_path, KEY, SIZE, Filler()), CONTENTS)
    assert not victim.exists()


def spoil_header(content: bytearray) -> None:
    content[40] ^= 1


def spoil_checksum_of_header(content: bytearray) -> None:
    content[90] ^= 1


def cut_off(content: bytearray) -> None:
    del content[-1]


def leave_nothing(content: bytearray) -> None:
    content.clear()


@pytest.mark.parametrize("spoil", [spoil_header, spoil_checksum_of_header, cut_off, leave_nothing])
def test_a_damaged_file_is_written_anew(spoil: Callable[[bytearray], None], tmp_path: Path) -> None:
    cached(tmp_path, KEY, SIZE, Filler())
    content = bytearray(weights(tmp_path).read_bytes())
    spoil(content)
    weights(tmp_path).write_bytes(content)
    again = Filler()
    assert np.array_equal(cached(tmp_path, KEY, SIZE, again), CONTENTS)
    assert again.calls == 1
    assert np.array_equal(cached(tmp_path, KEY, SIZE, never), CONTENTS)


def test_contents_lost_with_the_machine_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = "slipstream.workers.models.weights.weight_cache._boot"
    monkeypatch.setattr(boot, lambda: b"before".ljust(16))
    cached(tmp_path, KEY, SIZE, Filler())
    monkeypatch.setattr(boot, lambda: b"after".ljust(16))
    assert np.array_equal(cached(tmp_path, KEY, SIZE, never), CONTENTS)
    content = bytearray(weights(tmp_path).read_bytes())
    content[-100:] = bytes(100)
    weights(tmp_path).write_bytes(content)
    again = Filler()
    assert np.array_equal(cached(tmp_path, KEY, SIZE, again), CONTENTS)
    assert again.calls == 1


def fill_slowly_and_count(directory: Path, log: Path) -> None:
    def fill(into: Bytes) -> None:
        with log.open("a") as file:
            file.write("filled\n")
        time.sleep(0.2)  # long enough for the others to find the cache half written
        into[:] = CONTENTS

    assert np.array_equal(cached(directory, KEY, SIZE, fill), CONTENTS)


def test_of_several_workers_one_writes_and_the_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "cache", tmp_path / "log")
    workers = [context.Process(target=fill_slowly_and_count, args=arguments) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "filled\n"


def die_half_way(directory: Path) -> None:
    def fill(into: Bytes) -> None:
        into[: SIZE // 2] = CONTENTS[: SIZE // 2]
        os.kill(os.getpid(), signal.SIGKILL)

    cached(directory, KEY, SIZE, fill)


def test_what_a_killed_worker_leaves_is_not_used_and_goes(tmp_path: Path) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=die_half_way, args=(tmp_path,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.glob("*.part"))) == 1
    assert np.array_equal(cached(tmp_path, KEY, SIZE, Filler()), CONTENTS)
    assert not list(tmp_path.glob("*.part"))


def test_a_directory_that_cannot_be_used_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        contents = cached(tmp_path / "file" / "cache", KEY, SIZE, Filler())
    assert np.array_equal(contents, CONTENTS)
    assert "packed weights cannot be kept there" in caplog.text


def test_a_full_disk_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        contents = cached(tmp_path, KEY, SIZE, Filler())
    assert np.array_equal(contents, CONTENTS)
    assert "No space left on device" in caplog.text
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_an_error_while_filling_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    def fail(into: Bytes) -> None:
        raise ValueError("no such tensor")

    with pytest.raises(ValueError, match="no such tensor"):
        cached(tmp_path, KEY, SIZE, fail)
    assert not list(tmp_path.glob("*.part"))
    assert not list(tmp_path.glob("*.weights"))


def test_what_nobody_has_used_for_long_goes_when_something_is_written(tmp_path: Path) -> None:
    cached(tmp_path, KEY, SIZE, Filler())
    cached(tmp_path, bytes(32), SIZE, Filler())
    long_ago = time.time() - (UNUSED_DAYS + 1) * 24 * 3600
    for path in tmp_path.glob("*.weights"):
        os.utime(path, (long_ago, long_ago))
    cached(tmp_path, KEY, SIZE, never)  # this one is in use again
    cached(tmp_path, bytes([7] * 32), SIZE, Filler())
    assert {path.stem for path in tmp_path.glob("*.weights")} == {
        f"{key.hex()}.{os.geteuid()}" for key in (KEY, bytes([7] * 32))
    }


def test_of_keys_with_one_prefix_those_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [bytes([1, 2, number]).ljust(32) for number in range(4)]
    other = bytes([1, 3]).ljust(32)
    for age_s, key in enumerate((*keys, other)):
        cached(tmp_path, key, SIZE, Filler())
        used_s = time.time() - 1000 + age_s
        os.utime(tmp_path / f"{key.hex()}.{os.geteuid()}.weights", (used_s, used_s))
    mapped = cached(tmp_path, keys[0], SIZE, never)  # is used again
    become(monkeypatch, OWN, os.geteuid())
    keep_newest(tmp_path, bytes([1, 2]), 0)  # of another user
    monkeypatch.undo()
    keep_newest(tmp_path, bytes([1, 2]), 2)
    left = {path.name.partition(".")[0] for path in tmp_path.glob("*.weights")}
    assert left == {key.hex() for key in (keys[0], keys[3], other)}
    keep_newest(tmp_path, bytes([1, 2]), 0)
    assert np.array_equal(mapped, CONTENTS)


def test_the_users_cache_directory_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/somewhere")
    assert default_directory() == Path("/var/somewhere/slipstream/weights")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_directory() == Path("/home/somebody/.cache/slipstream/weights")
