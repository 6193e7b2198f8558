"""A disk that can be made slow while a cluster runs: its processes' writes to files take so long (`slow_disk.c`).

Not a slow block device: there the page cache would take what is written, and nobody would wait before memory is full.
Here every single write of a log line, of the state file or of the usage waits, in whatever thread it is made: as on a
network file system that hangs.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def can_be_slow() -> bool:
    """Whether there is a compiler for it."""
    return shutil.which("cc") is not None


class SlowDisk:
    """Files whose paths begin with `prefix` are slow for processes with `environment`."""

    def __init__(self, folder: Path, prefix: str) -> None:
        library, control = folder / "slow_disk.so", folder / "slow_disk.control"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        control.write_bytes(bytes(4))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), 4)
        preloaded = filter(None, (os.environ.get("LD_PRELOAD"), str(library)))
        self.environment = {
            "LD_PRELOAD": ":".join(preloaded),
            "SLOW_DISK_CONTROL": str(control),
            "SLOW_DISK_FOLDER": prefix,
        }

    def take(self, seconds: float) -> None:
        """From now on each write takes so long. 0: as the disk does."""
        self._control[:] = struct.pack("<I", round(seconds * 1e3))
