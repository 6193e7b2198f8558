"""Whether UCX is installed. It is an extra: workers of one host exchange pages of host memory without it."""

from __future__ import annotations

import importlib.util

MISSING = (
    "UCX is not installed (pip install 'slipstream[cpu]' without a GPU, [cu12] or [cu13] for PyTorch's CUDA version)"
)


def has_ucx() -> bool:
    """Looks for the Python package `ucxx`, and does not import it."""
    return importlib.util.find_spec("ucxx") is not None
