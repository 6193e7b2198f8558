"""The command that runs one of Slipstream's modules with this Python, and with the same Slipstream.

`python -m` looks for modules in the working directory first. There may be a checkout of another version, or a
`queue.py` of the user. `-P` leaves that directory out. It stays in where this Slipstream itself was found there, as in
`ray job submit --working-dir . -- python -m slipstream.cluster.serve`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import slipstream


def import_root() -> Path:
    """The directory in which this process has found the package `slipstream`."""
    return Path(slipstream.__file__).resolve().parents[1]


def module_command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, *module_options(module), *arguments]


def module_options(module: str) -> list[str]:
    """Python's options in that command."""
    try:
        is_here = Path(os.getcwd()).resolve() == import_root()
    except OSError:  # the working directory has been removed
        is_here = False
    return ["-m", module] if is_here else ["-P", "-m", module]
