"""The folder of a holder's socket. If the holder is killed, the next one on this host removes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "slipstream-keep-"
NEW_S = 60.0  # a younger folder may belong to a holder that has not locked it yet


class HolderFolder:
    """A new folder that only its user can open. It is locked as long as this process lives, which works across
    containers."""

    def __init__(self) -> None:
        """Raises OSError."""
        clear_left_behind(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def clear_left_behind(parent: Path) -> None:
    """Removes the folders of this user's holders that are no longer alive."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # its holder lives, or another process removes it
            found = folder.stat(follow_symlinks=False)
            if found.st_uid == os.getuid() and time.time() - found.st_mtime >= NEW_S:
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)
