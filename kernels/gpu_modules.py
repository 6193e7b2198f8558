"""The one door to the Triton kernels: `kernels.gpu` is imported through it, and only once a GPU is to be used."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def gpu_module(name: str) -> Any | None:
    """`slipstream.kernels.gpu.<name>`; None where triton is not installed.

    Imported on request: triton takes a second to import, which a worker on a CPU does without.
    """
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(f"slipstream.kernels.gpu.{name}")
