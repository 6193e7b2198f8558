"""Gives the memory of what a process no longer uses back to the machine."""

from __future__ import annotations

import ctypes
import gc

import torch


def release_memory() -> None:
    """Collects what was frozen when it was loaded (`gc.freeze`), and returns free memory to the system, which the C
    library would keep for this process. Takes a tenth of a second of a core, during which no Python code runs."""
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
