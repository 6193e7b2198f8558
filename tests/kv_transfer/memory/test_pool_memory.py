"""Memory of KV pools: who can see it, who can change it, how long it lasts, and in which pages it lies."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import platform
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.kv_transfer.memory import huge_pages
from slipstream.kv_transfer.memory.huge_pages import HUGE_BYTES, SETTINGS, num_huge_bytes
from slipstream.kv_transfer.memory.pool_memory import PoolMemory, view_of
from slipstream.workers.engine.kv_cache.kv_memory import KvMemory


def num_mappings(name: str) -> int:
    return sum(name in line for line in Path("/proc/self/maps").read_text().splitlines())


def kernel_makes_huge_pages() -> bool:
    """Whether it does on request: from Linux 6.1 on, unless the administrator forbids it."""
    version = tuple(int(number) for number in platform.release().split("-")[0].split(".")[:2])
    setting = SETTINGS / "shmem_enabled"
    return version >= (6, 1) and setting.exists() and "[deny]" not in setting.read_text()


@pytest.mark.skipif(not kernel_makes_huge_pages(), reason="the kernel makes no huge pages on request")
@pytest.mark.parametrize("is_shared", [True, False])
def test_memory_that_is_taken_lies_in_huge_pages_except_for_what_is_too_short(is_shared: bool) -> None:
    memory = PoolMemory(2 * HUGE_BYTES + 8192, is_shared=is_shared)
    assert num_huge_bytes(memory.buffer) == 0
    memory.take()
    assert num_huge_bytes(memory.buffer) == 2 * HUGE_BYTES
    assert not memory.buffer.any()
    memory.buffer[:] = 7
    assert num_huge_bytes(memory.buffer) == 2 * HUGE_BYTES


@pytest.mark.skipif(not kernel_makes_huge_pages(), reason="the kernel makes no huge pages on request")
def test_a_reader_sees_the_same_huge_pages_even_if_it_was_there_before_them() -> None:
    memory = PoolMemory(2 * HUGE_BYTES)
    assert memory.file is not None
    view = view_of(memory.file, 2 * HUGE_BYTES)
    assert not view.any()
    memory.take()
    memory.buffer[-1] = 42
    assert view[-1] == 42
    assert view[0] == 0
    assert num_huge_bytes(view) == 2 * HUGE_BYTES


@pytest.mark.parametrize(
    ("is_shared", "value", "file"), [(True, "advise", "shmem_enabled"), (False, "madvise", "enabled")]
)
def test_if_the_kernel_makes_no_huge_pages_the_memory_serves_and_the_log_says_where_the_setting_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_shared: bool, value: str, file: str
) -> None:
    setting = SETTINGS / file
    if setting.exists() and any(unasked in setting.read_text() for unasked in ("[always]", "[within_size]", "[force]")):
        pytest.skip(f"the kernel makes huge pages unasked: {setting}")
    monkeypatch.setattr(huge_pages, "_MADV_COLLAPSE", 0xBAD)  # advice that no kernel knows
    monkeypatch.setattr(huge_pages.mmap, "MADV_HUGEPAGE", 0xBAD)
    memory = PoolMemory(2 * HUGE_BYTES, is_shared=is_shared)
    with caplog.at_level(logging.INFO):
        memory.take()
    memory.buffer[:] = 7
    assert memory.buffer.min() == 7
    assert "0 of 4 MiB of the KV pool are in huge pages" in caplog.text
    assert f"'{value}' is in /sys/kernel/mm/transparent_hugepage/{file}," in caplog.text


def test_a_part_of_the_memory_keeps_all_of_it_and_nothing_stays_when_nobody_uses_it() -> None:
    before = num_mappings("slipstream-kv-pool")
    memory = PoolMemory(2 * HUGE_BYTES)
    assert memory.file is not None
    view = view_of(memory.file, 2 * HUGE_BYTES)
    memory.close()
    part = memory.buffer[5:6]
    part[0] = 42
    del memory
    assert view[5] == 42
    view_part = np.frombuffer(view, np.uint8)[5:6]
    del view, part
    assert view_part[0] == 42
    assert num_mappings("slipstream-kv-pool") == before + 1
    del view_part
    assert num_mappings("slipstream-kv-pool") == before


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_pool_is_a_tensor_of_zeros_in_memory_of_either_sort(is_shared: bool) -> None:
    before = num_mappings("slipstream-kv-pool")
    memory = KvMemory(is_shared=is_shared)
    pool = memory.zeros((2, 3, 5), torch.float32)
    assert torch.equal(pool, torch.zeros(2, 3, 5))
    pool[1, 2, 4] = 1.0
    assert memory.pool is not None
    assert (memory.pool.file is not None) is is_shared
    assert num_mappings("slipstream-kv-pool") == before + is_shared
    assert memory.pool.buffer.view(np.float32)[-1] == 1.0
    memory.pool.close()


def test_memory_for_which_there_are_no_addresses_is_refused() -> None:
    with pytest.raises(MemoryError, match=r"no 4611686018427387904 bytes for the KV pool: .*Cannot allocate memory"):
        PoolMemory(1 << 62, is_shared=False)


def test_a_view_cannot_be_written() -> None:
    memory = PoolMemory(8192)
    assert memory.file is not None
    view = view_of(memory.file, 8192)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    memory.close()


def test_the_memory_that_is_handed_out_can_neither_be_written_nor_shrunk() -> None:
    memory = PoolMemory(1 << 20)
    assert memory.file is not None
    memory.buffer[5] = 42
    view = view_of(memory.file, 1 << 20)
    assert view[5] == 42
    with pytest.raises(PermissionError):
        mmap.mmap(memory.file, 1 << 20, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match=r"Invalid argument|not permitted"):
        os.ftruncate(memory.file, 0)
    memory.close()


def test_a_view_of_memory_that_could_shrink_is_refused() -> None:
    file = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, 4096)
        with pytest.raises(ValueError, match="not sealed"):
            view_of(file, 4096)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        with pytest.raises(ValueError, match="has 4096 bytes, not 8192"):
            view_of(file, 8192)
    finally:
        os.close(file)


def test_without_shared_memory_there_is_a_warning_and_private_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def memfd_fails(name: str, flags: int) -> int:
        raise OSError("not implemented here")

    monkeypatch.setattr(os, "memfd_create", memfd_fails)
    with caplog.at_level(logging.WARNING):
        memory = PoolMemory(8192)
    assert memory.file is None
    assert len(memory.buffer) == 8192
    assert "pages will go to other workers by UCX" in caplog.text
