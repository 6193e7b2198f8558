"""Places of shared memory: leased, given back, never twice; the file grows, shrinks and goes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from slipstream.router.tensor_memory.region_pool import (
    ALIGNMENT_BYTES,
    MOST_BYTES,
    UNIT_BYTES,
    RegionPool,
    RegionPoolFull,
    default_limit_bytes,
)
from slipstream.router.tensor_memory.shared_file import SHM, SharedFile, map_file

MIB = 1 << 20


def test_a_place_is_seen_by_who_maps_its_file() -> None:
    with RegionPool(8 * MIB) as pool:
        assert pool.key == ""  # nothing is made before it is needed
        lease = pool.allocate(100)
        lease.view[:] = bytes(range(100))
        part = lease.slice_of(10, 5)
        other = map_file(pool.key)
        assert bytes(other.view[part.offset : part.offset + 5]) == bytes(range(10, 15))
        assert (lease.slice.offset, lease.slice.num_bytes) == (lease.offset, 100)
        assert pool.usage.num_leases == 1
        lease.release()
        lease.release()
        assert (pool.usage.num_leases, pool.usage.leased_bytes) == (0, 0)
        with pytest.raises(ValueError, match="released"):
            _ = lease.view


def test_the_part_after_a_head_is_aligned() -> None:
    with RegionPool(8 * MIB) as pool:
        for head_bytes in (0, 1, 63, 64, 4095):
            lease = pool.allocate(head_bytes + 1000, head_bytes)
            assert (lease.offset + head_bytes) % ALIGNMENT_BYTES == 0
            assert len(lease.view) == head_bytes + 1000


@pytest.mark.parametrize(("offset", "num_bytes"), [(0, 101), (-1, 2), (100, 1), (5, -1)])
def test_a_part_lies_within_its_place(offset: int, num_bytes: int) -> None:
    with RegionPool(8 * MIB) as pool, pytest.raises(ValueError, match="do not lie within 100 bytes"):
        pool.allocate(100).slice_of(offset, num_bytes)


def test_a_full_pool_refuses_and_takes_again_when_there_is_room() -> None:
    with RegionPool(MIB) as pool:
        first = pool.allocate(MIB // 2)
        pool.allocate(MIB // 2)
        with pytest.raises(RegionPoolFull, match="no room for 1 bytes in shared memory: 1048576 of 1048576"):
            pool.allocate(1)
        first.release()
        assert pool.allocate(MIB // 2).offset == first.offset


def test_a_full_file_system_refuses_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(file: SharedFile, offset: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RegionPool(8 * MIB) as pool:
        monkeypatch.setattr(SharedFile, "reserve", no_space)
        with pytest.raises(RegionPoolFull, match="No space left"):
            pool.allocate(1)
        assert (pool.usage.num_leases, pool.usage.leased_bytes) == (0, 0)


def test_unused_memory_goes_back_to_the_machine_at_the_second_trim() -> None:
    with RegionPool(64 * MIB) as pool:
        small, large = pool.allocate(1000), pool.allocate(20 * MIB)
        path = SHM / pool.key
        large.release()
        pool.trim()
        assert path.stat().st_blocks * 512 >= 20 * MIB  # it was in use a moment ago
        pool.trim()
        assert path.stat().st_blocks * 512 <= MIB
        assert pool.usage.reserved_bytes <= MIB
        small.view[:] = b"s" * 1000
        again = pool.allocate(20 * MIB)
        again.view[-1] = 1
        assert bytes(small.view) == b"s" * 1000


def test_a_promise_takes_up_no_memory_until_it_grows() -> None:
    with RegionPool(64 * MIB) as pool:
        promised = pool.promise(40 * MIB)
        behind = pool.allocate(MIB)
        path = SHM / pool.key
        assert path.stat().st_blocks * 512 <= 5 * MIB
        assert promised.grow(10 * MIB)
        promised.view[: 10 * MIB] = b"p" * (10 * MIB)
        behind.view[:] = b"b" * MIB
        assert 11 * MIB <= path.stat().st_blocks * 512 == pool.usage.reserved_bytes <= 20 * MIB
        assert bytes(promised.view[10 * MIB - 1 : 10 * MIB]) == b"p"
        behind.release()
        promised.release()
        pool.trim()
        pool.trim()
        assert path.stat().st_blocks == pool.usage.reserved_bytes == pool.usage.num_leases == 0


def test_promises_take_no_room_from_those_who_write() -> None:
    with RegionPool(8 * MIB) as pool:
        promised = [pool.promise(7 * MIB) for _ in range(8)]
        written = pool.allocate(5 * MIB)
        written.view[:] = b"w" * (5 * MIB)
        assert promised[0].grow(3 * MIB)
        assert not promised[1].grow(1)
        with pytest.raises(RegionPoolFull, match="8388608 of 8388608 bytes are in use"):
            pool.allocate(1)
        written.release()
        assert promised[1].grow(MIB), "memory that is not leased is given up for it"
        assert (SHM / pool.key).stat().st_blocks * 512 == pool.usage.reserved_bytes <= 8 * MIB


def test_what_exceeds_the_limit_is_not_promised() -> None:
    with RegionPool(8 * MIB) as pool, pytest.raises(RegionPoolFull):
        pool.promise(8 * MIB + 1)


def test_the_default_limit_is_bounded_by_the_memory_that_is_there() -> None:
    assert UNIT_BYTES <= default_limit_bytes() <= MOST_BYTES


def test_a_promise_that_the_file_system_cannot_keep_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(file: SharedFile, offset: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RegionPool(8 * MIB) as pool:
        lease = pool.promise(MIB)
        monkeypatch.setattr(SharedFile, "reserve", no_space)
        assert not lease.grow(1)
        lease.release()
        assert (pool.usage.num_leases, pool.usage.leased_bytes) == (0, 0)


def test_the_file_goes_with_the_pool() -> None:
    with RegionPool(MIB) as pool:
        lease = pool.allocate(10)
        path = SHM / pool.key
        assert path.exists()
    assert not path.exists()
    lease.view[:] = b"0123456789"  # what was mapped stays
    with pytest.raises(RegionPoolFull):
        pool.allocate(1)


def test_a_limit_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit_bytes must be at least 4096, got 100"):
        RegionPool(100)


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "/etc/passwd"])
def test_only_names_are_mapped(key: str) -> None:
    with pytest.raises(ValueError, match="is no name of a file"):
        map_file(key)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.write_bytes(b"x" * 4096)
    link = SHM / "slipstream-tests-link"
    link.symlink_to(target)
    try:
        with pytest.raises(OSError, match="symbolic links"):
            map_file(link.name)
    finally:
        link.unlink()
