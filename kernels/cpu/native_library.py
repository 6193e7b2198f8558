"""The native CPU library: which build of it fits this processor, and its functions with their types.

`setup.py` compiles the sources beside this file twice, for AVX-512 (with bf16 products) and for AVX2.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import sys
from pathlib import Path

from slipstream.kernels.cpu.c_interface import declare

log = logging.getLogger(__name__)

FOLDER = Path(__file__).resolve().parent
# Best first: the processor flags that each build needs, as Linux names them.
NEEDED_FLAGS = {
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512vbmi", "fma", "f16c"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
}


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """The best build for this processor, or None, after one warning, where there is none."""
    reasons = []
    for variant in filter(fits, NEEDED_FLAGS):
        try:
            return open_library(variant)
        except OSError as error:
            reasons.append(str(error))
    log.warning(
        "no native CPU kernels (%s): torch's forms are used, which are much slower, and with which a drawn answer that "
        "is resumed after a failure may go on with another token; the wheel for x86-64 Linux has the kernels, and "
        "scripts/setup builds them with g++",
        "; ".join(reasons) or why_not_native(),
    )
    return None


def why_not_native() -> str | None:
    """Why there are no native kernels for this processor, without loading any; None: there are."""
    fitting = [variant for variant in NEEDED_FLAGS if fits(variant)]
    if any(_path(variant).exists() for variant in fitting):
        return None
    if fitting:
        return f"{' and '.join(str(_path(variant)) for variant in fitting)}: no such file"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"they are built for x86-64 Linux, and this is {platform.machine()} {platform.system()}"
    return "the processor has neither AVX-512 with bf16 nor AVX2"


def fits(variant: str) -> bool:
    """Whether this machine can run the build `variant` (a key of NEEDED_FLAGS)."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return NEEDED_FLAGS[variant] <= _processor_flags()


def open_library(variant: str) -> ctypes.CDLL:
    """Loads the build `variant`; its functions are those of `c_interface.declare`. Raises OSError if it is not there or
    is of an older version than this file."""
    path = _path(variant)
    library = ctypes.CDLL(str(path))
    try:
        declare(library)
    except AttributeError as error:
        raise OSError(f"{path} is not of this version: {error}") from error
    return library


def _path(variant: str) -> Path:
    return FOLDER / f"_{variant}.so"


@functools.cache
def _processor_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
