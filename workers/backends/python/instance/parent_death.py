"""An instance does not outlive the host that has started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """The kernel kills this process when the parent's thread that started it ends. Ends it at once if the parent is
    gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent_pid and os.getppid() != parent_pid:
        os._exit(1)
