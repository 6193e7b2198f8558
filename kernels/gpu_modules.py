"""Imports the Triton kernels (the `gpu` folders of `kernels`), and only once a GPU is to be used."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def gpu_module(name: str) -> Any | None:
    """`slipstream.kernels.<name>`; None where triton is not installed.

    Imported on request: triton takes a second to import, which a worker on a CPU does without.
    """
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(f"slipstream.kernels.{name}")
