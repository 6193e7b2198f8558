"""The folder of a Ray of our own. If the driver is killed, its reaper removes the folder; if that was killed as well,
the next start on this machine does."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PARENT = Path("/tmp")
PREFIX = "slipstream-"
OWNER = "owner"  # a file that the driver keeps locked as long as it lives, which works across containers


class RayFolder:
    def __init__(self) -> None:
        """Creates the folder. Raises OSError."""
        clear_left_behind()
        # Its path is short, because paths of Unix sockets are limited to 107 bytes, of which Ray adds 65.
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PARENT))
        unlocked = self.path / "new"
        self._lock = unlocked.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / OWNER)  # renamed only now, so that no process finds it before it is locked

    def close(self) -> None:
        """Lets go of the folder, which may be removed from now on."""
        self._lock.close()


def clear_left_behind() -> None:
    for folder in PARENT.glob(f"{PREFIX}*"):
        try:
            if folder.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            with (folder / OWNER).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its driver is alive, or it has none
            continue
