"""Copying scattered rows of memory, with the checksum of what was copied from the same pass.

The native form (`native/`, compiled by `setup.py` for AVX-512 and for AVX2) reads scattered pages a third faster than a
plain copy and has the checksum for nothing. numpy and xxhash do the same where it is missing; the checksum, XXH3-64,
is the same in both, so ends with and without it understand each other.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import sys
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).resolve().parent / "native"
NEEDED_FLAGS = {  # of the processor; best first
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx2": frozenset({"avx2"}),
}
MIN_BYTES = 241  # the native form leaves shorter inputs to xxhash
DONE = 0

RowIds = npt.NDArray[np.int64]
CopyRows = Callable[..., int]


class Table:
    """Rows in memory, `row_bytes` of every `row_stride`. Keeps `owner`, whose memory it is, alive."""

    __slots__ = ("address", "num_rows", "owner", "row_bytes", "row_stride")

    def __init__(self, owner: object, address: int, num_rows: int, row_bytes: int, row_stride: int) -> None:
        self.owner = owner
        self.address = address
        self.num_rows = num_rows
        self.row_bytes = row_bytes
        self.row_stride = row_stride

    @classmethod
    def of_buffer(cls, buffer: npt.NDArray[np.uint8], row_bytes: int) -> Table:
        """A buffer cut into rows without gaps."""
        return cls(buffer, buffer.ctypes.data, len(buffer) // row_bytes, row_bytes, row_bytes)


def copy_rows(
    native: CopyRows,
    to: Table | None,
    to_ids: RowIds | None,
    source: Table,
    source_ids: RowIds | None,
    num_rows: int,
    seed: int,
    past_caches: bool = False,
) -> int:
    """Copies row `source_ids[i]` of one table to row `to_ids[i]` of the other (None: row i), for i below `num_rows`.

    Without `to` nothing is copied. `past_caches`: nobody reads the copy soon. Returns the XXH3-64 with `seed` of the
    rows as one string. Raises IndexError if an id is none of its table's rows.
    """
    checksum = c_uint64()
    outcome = native(
        to.address if to is not None else None,
        to.row_stride if to is not None else 0,
        to.num_rows if to is not None else 0,
        to_ids.ctypes.data if to_ids is not None else None,
        source.address,
        source.row_stride,
        source.num_rows,
        source_ids.ctypes.data if source_ids is not None else None,
        num_rows,
        source.row_bytes,
        past_caches,
        seed,
        ctypes.byref(checksum),
    )
    if outcome != DONE:
        raise IndexError("a page id is out of range")
    return checksum.value


@functools.cache
def native_copy_rows() -> CopyRows | None:
    """The native form for this processor, or None, after one warning, where there is none."""
    reasons = []
    for variant, needed in NEEDED_FLAGS.items():
        if sys.platform == "linux" and platform.machine() == "x86_64" and needed <= _processor_flags():
            try:
                return open_native(variant)
            except OSError as error:
                reasons.append(str(error))
    why = "; ".join(reasons) or "the processor has neither AVX-512 nor AVX2"
    logger.warning("no native page copy (%s): numpy copies the pages, which is slower", why)
    return None


def open_native(variant: str) -> CopyRows:
    """The build `variant`, a key of NEEDED_FLAGS. Raises OSError if it is not there."""
    function = ctypes.CDLL(str(FOLDER / f"_{variant}.so")).slipstream_copy_rows
    table = [c_void_p, c_int64, c_int64, c_void_p]
    function.argtypes = [*table, *table, c_int64, c_int64, c_int32, c_uint64, c_void_p]
    function.restype = c_int32
    return function


@functools.cache
def _processor_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
