"""Memory of which the processor keeps track in pieces of 2 MiB instead of 4 KiB.

A transfer reads and writes scattered pages. In pieces of 4 KiB a large pool has more of them than the processor
remembers, and looking up where they are slows every copy (docs/results/kv_transfer.md).

- A huge page of a file fits only at an address that is a multiple of its size. Python's `mmap` cannot choose the
  address, so the calls here are the C library's.
- The kernel gives huge pages to a memfd that is written only where the administrator allows it (`shmem_enabled`, by
  default `never`). But since Linux 6.1 any process may ask it to make huge pages of what has been written
  (MADV_COLLAPSE), whatever the settings are, short of `deny`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import weakref
from ctypes import c_int, c_long, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import numpy.typing as npt

HUGE_BYTES = 2 << 20
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")

_MADV_COLLAPSE = 25  # of Linux's mman.h, as are the next ones; Python does not name all of them
_MADV_REMOVE = 9
_MADV_NOHUGEPAGE = 15
_MAP_FIXED = 0x10
_MAP_FAILED = c_void_p(-1).value
_HUGE_FIELDS = ("AnonHugePages:", "ShmemPmdMapped:")

Memory = npt.NDArray[np.uint8]


def map_memory(num_bytes: int, file: int | None = None, is_writable: bool = True, is_huge: bool = True) -> Memory:
    """Maps `file`, or private memory, where huge pages fit; unmaps it when neither the array nor a part of it is used
    any more. `madvise` has asked for huge pages, which the kernel may or may not give, or if not `is_huge` for none.
    Raises OSError."""
    library = _library()
    reserved_bytes = num_bytes + HUGE_BYTES
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    reserved = _checked(library.mmap(None, reserved_bytes, 0, private, -1, 0))
    address = -(-reserved // HUGE_BYTES) * HUGE_BYTES
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    flags = _MAP_FIXED | (private if file is None else mmap.MAP_SHARED)
    try:
        _checked(library.mmap(address, num_bytes, protection, flags, -1 if file is None else file, 0))
    except OSError:
        library.munmap(reserved, reserved_bytes)
        raise
    owner = (ctypes.c_uint8 * num_bytes).from_address(address)
    # Not at the end of the process: other threads may still be running then.
    weakref.finalize(owner, library.munmap, reserved, reserved_bytes).atexit = False
    library.madvise(address, num_bytes, mmap.MADV_HUGEPAGE if is_huge else _MADV_NOHUGEPAGE)
    memory = np.frombuffer(memoryview(owner), np.uint8)
    memory.flags.writeable = is_writable
    return memory


def take_huge_pages(memory: Memory) -> None:
    """Takes the machine's memory for a mapping to which nothing has been written yet, in huge pages as far as the
    kernel makes some. What is left is taken when it is written."""
    memory[::HUGE_BYTES] = 0  # the kernel makes a huge page around what is there
    _library().madvise(memory.ctypes.data, len(memory), _MADV_COLLAPSE)


def return_memory(memory: Memory, first: int, end: int, is_shared: bool) -> None:
    """Returns bytes `first .. end` of a mapping to the system, as far as whole pages of the machine lie within; they
    read as zeros afterwards, here and in every other mapping of a shared file. Raises OSError."""
    first, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= first:
        return
    # Of a shared file, MADV_DONTNEED would only drop this process's view of the memory.
    advice = _MADV_REMOVE if is_shared else mmap.MADV_DONTNEED
    if _library().madvise(memory.ctypes.data + first, end - first, advice):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def num_huge_bytes(memory: Memory) -> int:
    """How much of a mapping is in huge pages; 0 where the kernel does not say."""
    num_kib, is_ours = 0, False
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
            name, *values = line.split()
            if not name.endswith(":"):
                begin, end = (int(place, 16) for place in name.split("-"))
                is_ours = begin <= memory.ctypes.data < end
            elif is_ours and name in _HUGE_FIELDS:
                num_kib += int(values[0])
    return min(num_kib << 10, len(memory))


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = c_void_p
    library.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
    library.munmap.argtypes = (c_void_p, c_size_t)
    library.madvise.argtypes = (c_void_p, c_size_t, c_int)
    return library


def _checked(address: int | None) -> int:
    if address is None or address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address
