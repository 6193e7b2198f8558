"""The process of an instance, on a host that has no room for it."""

from __future__ import annotations

import asyncio
import errno
import os
import sys

import psutil
import pytest

from slipstream.workers.instances.instance_process import InstanceProcess
from slipstream.workers.instances.launch_command import LaunchCommand

SLEEPS = LaunchCommand([sys.executable, "-c", "import time; time.sleep(1000)"], dict(os.environ))


def test_a_process_that_cannot_be_watched_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = []

    def refused(pid: int, flags: int = 0) -> int:
        watched.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    async def start() -> None:
        InstanceProcess(SLEEPS, None, lambda returncode: None)

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(OSError, match="Too many open files"):
        asyncio.run(start())
    assert len(watched) == 1
    assert not psutil.pid_exists(watched[0])
