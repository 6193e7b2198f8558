"""The instances of a host, from the router's command until the router knows of their end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

from slipstream.router.instances.messages import InstanceEnd, StartInstance
from slipstream.router.tensor_memory.shared_file import memory_id
from slipstream.router.tensor_memory.stale_files import remove_files_of
from slipstream.workers.instances.instance_log import trim
from slipstream.workers.instances.instance_process import InstanceProcess
from slipstream.workers.instances.launch_command import InstanceContact, Launcher

CHECK_LOGS_S = 10.0

log = logging.getLogger(__name__)


class InstanceTable:
    """Each launch ends with exactly one `report`.

    start -> (command is made) -> process -> ended -> reported
                   +-- cannot be started ------^
    """

    def __init__(
        self, launcher: Launcher, logs: Path | None, report: Callable[[StartInstance, InstanceEnd], None]
    ) -> None:
        self._launcher = launcher
        self._logs = logs
        self._report = report
        self._starts: dict[str, StartInstance] = {}
        self._making: dict[str, asyncio.Task[None]] = {}  # commands
        self._processes: dict[str, InstanceProcess] = {}
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def running(self) -> list[StartInstance]:
        return list(self._starts.values())

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes that run, by launch."""
        return {launch: process.pid for launch, process in self._processes.items()}

    def start(self, start: StartInstance, secret: str, address: str) -> None:
        """Starts an instance that is to connect to `address`."""
        launch = start.launch
        if launch in self._starts:
            return
        self._starts[launch] = start
        self._is_empty.clear()
        contact = InstanceContact(address, launch, secret, memory_id())
        self._making[launch] = asyncio.create_task(self._start(start, contact), name=f"start {start.name}")

    def stop(self, launch: str, grace_s: float) -> None:
        """Kills it after `grace_s`, unless it has ended by then. Unknown launches have ended."""
        making = self._making.pop(launch, None)
        if making is not None:
            making.cancel()  # perhaps before its first step
            self._end(launch, InstanceEnd(f"{self._starts[launch].name} was stopped before it was started"))
        elif launch in self._processes:
            self._processes[launch].kill_after(grace_s)

    def stop_all(self, grace_s: float) -> None:
        """Asks all to end, and kills them after `grace_s`."""
        for launch in list(self._starts):
            self.stop(launch, grace_s)
        for process in self._processes.values():
            process.terminate()

    async def wait_empty(self) -> None:
        await self._is_empty.wait()

    async def keep_logs_small(self) -> None:
        """Watches the logs of what runs, until it is cancelled."""
        while True:
            await asyncio.sleep(CHECK_LOGS_S)
            logs = {process.log for process in self._processes.values() if process.log is not None}
            await asyncio.to_thread(trim, logs)

    async def _start(self, start: StartInstance, contact: InstanceContact) -> None:
        """It has no effect once it is cancelled."""
        launch = start.launch
        try:
            command = await asyncio.to_thread(self._launcher, start, contact)
            process = InstanceProcess(command, self._log_of(start), partial(self._on_exit, launch))
        except (OSError, ValueError) as error:
            self._could_not_start(start, str(error))
        except Exception as error:
            log.exception("%s could not be started", start.name)
            self._could_not_start(start, repr(error))
        else:
            log.info("instance %s of model %s: process %d", start.name, start.model, process.pid)
            del self._making[launch]
            self._processes[launch] = process

    def _log_of(self, start: StartInstance) -> Path | None:
        """The names of instances are free text."""
        return None if self._logs is None else self._logs / f"{quote(start.name, safe='')}-version-{start.version}.log"

    def _could_not_start(self, start: StartInstance, cause: str) -> None:
        del self._making[start.launch]
        self._end(start.launch, InstanceEnd(f"{start.name} could not be started: {cause}"))

    def _on_exit(self, launch: str, returncode: int) -> None:
        process = self._processes.pop(launch)
        remove_files_of(launch)
        reason = exit_reason(self._starts[launch].name, returncode)
        log.info("%s", reason)
        self._end(launch, InstanceEnd(reason, returncode, process.log_tail))

    def _end(self, launch: str, end: InstanceEnd) -> None:
        start = self._starts.pop(launch)
        if not self._starts:
            self._is_empty.set()
        self._report(start, end)


def exit_reason(name: str, returncode: int) -> str:
    """A sentence."""
    if returncode >= 0:
        return f"the process of {name} has ended with exit code {returncode}"
    try:
        cause = signal.Signals(-returncode).name
    except ValueError:
        cause = f"signal {-returncode}"
    return f"the process of {name} was killed by {cause}"
