"""The process of one instance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from slipstream.workers.instances.instance_log import opened, tail_of
from slipstream.workers.instances.launch_command import LaunchCommand


class InstanceProcess:
    """Started by the constructor, in a session of its own, so that the processes that a model starts are killed with
    it. `ended` is called once with the exit code, on the event loop. Raises OSError if it cannot be started.

    The kernel ends an instance with the thread that started it: construct it on a thread that lasts."""

    def __init__(self, command: LaunchCommand, log: Path | None, ended: Callable[[int], None]) -> None:
        self.log = log
        self._log_start = 0
        self._ended = ended
        self._kill_timer: asyncio.TimerHandle | None = None
        self._process = self._started(command)
        try:
            self._descriptor = os.pidfd_open(self._process.pid)
        except OSError:  # no file can be opened any more
            self.kill()
            self._process.wait()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log_tail(self) -> str:
        """The end of its output; "" if that is not in a file."""
        return "" if self.log is None else tail_of(self.log, self._log_start)

    def terminate(self) -> None:
        """Asks it to finalize its model and end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill_after(self, grace_s: float) -> None:
        """Kills it if it has not ended by then. A second call may only shorten that."""
        timer = self._loop.call_later(grace_s, self.kill)
        if self._kill_timer is not None and self._kill_timer.when() <= timer.when():
            timer.cancel()
            return
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_timer = timer

    def kill(self) -> None:
        """Kills it and the processes that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _started(self, command: LaunchCommand) -> subprocess.Popen[bytes]:
        output = None if self.log is None else opened(self.log)
        if output is not None:
            self._log_start = os.fstat(output).st_size
        try:
            return subprocess.Popen(
                command.argv,
                env=command.environment,
                cwd=command.folder or None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            if output is not None:
                os.close(output)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.kill()  # its children: the group's number is not used again before the process is waited for
        returncode = self._process.wait()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._ended(returncode)
