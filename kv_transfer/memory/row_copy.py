"""Copies scattered rows of memory and computes their checksum in the same pass.

The native form (`native/`, compiled by `setup.py` for AVX-512 and for AVX2) reads scattered pages a third faster than a
plain copy, and the checksum costs nothing extra. If it is missing, numpy and xxhash are used. The checksum, XXH3-64, is
the same in both cases, so ends with and without the native form understand each other.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import struct
import sys
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

FOLDER = Path(__file__).resolve().parents[1] / "native"
NEEDED_FLAGS = {  # the processor's features that each build needs; best build first
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx2": frozenset({"avx2"}),
}
MIN_BYTES = 241  # the native form leaves shorter inputs to xxhash
DONE = 0

RowIds = npt.NDArray[np.int64]
CopyRows = Callable[[bytes, int, Any, Any], None]

# Two tables with where their ids begin, counted from the first job's beginning (0: rows 0, 1, 2, ...); then rows, bytes
# of a row, past caches, seed. The ids follow all jobs.
_JOB = struct.Struct("<QqqQQqqQqqqQ")


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows in memory: `row_bytes` out of every `row_stride`. Keeps the `owner` of the memory alive."""

    owner: object
    address: int
    num_rows: int
    row_bytes: int
    row_stride: int

    @classmethod
    def of_buffer(cls, buffer: npt.NDArray[np.uint8], row_bytes: int) -> RowTable:
        """A buffer cut into rows without gaps."""
        return cls(buffer, buffer.ctypes.data, len(buffer) // row_bytes, row_bytes, row_bytes)


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Row `source_ids[i]` of one table to row `to_ids[i]` of the other (None: row i), for i below `num_rows`.

    Without `to`, the rows are only read. `past_caches`: the copy will not be read soon. `seed` is that of the checksum,
    the XXH3-64 of the rows as one string. There must be at least MIN_BYTES in all.
    """

    to: RowTable | None
    to_ids: RowIds | None
    source: RowTable
    source_ids: RowIds | None
    num_rows: int
    seed: int
    past_caches: bool = False


def pack_copies(copies: Sequence[RowCopy]) -> bytes:
    """The copies in the form that the native side reads. It contains the ids, but only refers to the tables' memory."""
    jobs: list[bytes] = []
    ids: list[bytes] = []
    end = len(copies) * _JOB.size
    for copy in copies:
        to, source = copy.to, copy.source
        places = [0, 0]
        for which, some in enumerate((copy.to_ids, copy.source_ids)):
            if some is not None:
                places[which] = end
                ids.append(some.tobytes())
                end += len(ids[-1])
        jobs.append(
            _JOB.pack(
                0 if to is None else to.address,
                0 if to is None else to.row_stride,
                0 if to is None else to.num_rows,
                places[0],
                source.address,
                source.row_stride,
                source.num_rows,
                places[1],
                copy.num_rows,
                source.row_bytes,
                copy.past_caches,
                copy.seed,
            )
        )
    return b"".join(jobs + ids)


def copy_rows(native: CopyRows, copies: Sequence[RowCopy]) -> list[int | None]:
    """Makes the copies in one call, without the interpreter's lock. Returns the checksum of each; None for one that
    names a row which its table does not have, and of which nothing was copied."""
    checksums, outcomes = (c_uint64 * len(copies))(), (c_int32 * len(copies))()
    native(pack_copies(copies), len(copies), checksums, outcomes)
    return [checksum if outcome == DONE else None for checksum, outcome in zip(checksums[:], outcomes[:], strict=True)]


@functools.cache
def native_copy_rows() -> CopyRows | None:
    """The native form for this processor; None, after one warning, if there is none."""
    reasons = []
    for variant in usable_variants():
        try:
            return open_native(variant)
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
    why = "; ".join(reasons) or "the processor has neither AVX-512 nor AVX2"
    log.warning("no native page copy (%s): numpy copies the pages, which is slower", why)
    return None


def usable_variants() -> list[str]:
    """The builds that this processor can run, best first."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    return [variant for variant, needed in NEEDED_FLAGS.items() if needed <= _processor_flags()]


def open_library(variant: str) -> ctypes.CDLL:
    """The build `variant`, a key of NEEDED_FLAGS. Raises OSError if it does not exist."""
    return ctypes.CDLL(str(FOLDER / f"_{variant}.so"))


def open_native(variant: str) -> CopyRows:
    """The native form of a build. Raises OSError like `open_library`, AttributeError if the build is too old."""
    function = open_library(variant).slipstream_do_copies
    function.argtypes = (c_char_p, c_int64, c_void_p, c_void_p)
    function.restype = None
    return function


@functools.cache
def _processor_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
