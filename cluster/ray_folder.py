"""The folder of a Ray of our own. A reaper removes it behind a driver that was killed; where that was killed as well,
the next start on this machine does."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PARENT = Path("/tmp")
PREFIX = "slipstream-"
OWNER = "owner"  # locked by the driver as long as it lives, in whatever container


class RayFolder:
    def __init__(self) -> None:
        """Raises OSError."""
        clear_left_behind()
        # Short, because the paths of Unix sockets below it may have 107 bytes at most, and Ray adds 65 of them.
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PARENT))
        unlocked = self.path / "new"
        self._lock = unlocked.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / OWNER)  # nobody finds it before it is locked

    def close(self) -> None:
        """From now on it may be removed."""
        self._lock.close()


def clear_left_behind() -> None:
    for folder in PARENT.glob(f"{PREFIX}*"):
        try:
            if folder.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            with (folder / OWNER).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its driver lives, or it has none
            continue
