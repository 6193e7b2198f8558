"""Keeps a worker's report up to date, and times the stages of its start."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time

from slipstream.router.protocol.messages import Role
from slipstream.workers.telemetry.worker_report import WorkerReport, WorkerState

LOADING: tuple[WorkerState, ...] = ("new", "freeing", "gathering", "fetching", "loading", "warming_up")
AFTER_START: tuple[WorkerState, ...] = ("ready", "draining", "stopped", "failed")

log = logging.getLogger(__name__)


class Reporter:
    """Updated by the worker's threads and read by any thread: `report` never blocks."""

    def __init__(self, name: str, role: Role, startup_s: tuple[tuple[str, float], ...] = ()) -> None:
        """`startup_s`: the stages that the process has behind it, as the worker of another model."""
        self._lock = threading.Lock()  # guards the fields below
        self._report = WorkerReport(name, 0, os.getpid(), "new", 0, "", startup_s, role)
        self._state_since_s = time.monotonic()
        self._is_starting = True

    @property
    def report(self) -> WorkerReport:
        return self._report

    @property
    def is_loading(self) -> bool:
        return self._report.state in LOADING

    def show(self, state: WorkerState, progress: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            last = self._report
            startup_s = last.startup_s
            if state != last.state:
                if self._is_starting and last.state != "new":
                    startup_s = (*startup_s, (last.state, round(now_s - self._state_since_s, 4)))
                if state == "draining":  # it may be about to change its role, which is timed like a start
                    startup_s = ()
                self._is_starting = state == "draining" or (self._is_starting and state not in AFTER_START)
                self._state_since_s = now_s
            self._report = dataclasses.replace(last, state=state, progress=progress, startup_s=startup_s)
        log.info("%s: %s", last.name, f"{state} ({progress})" if progress else state)

    def serves_as(self, role: Role) -> None:
        with self._lock:
            self._report = dataclasses.replace(self._report, role=role)

    def connects_in(self, epoch: int) -> None:
        with self._lock:
            self._report = dataclasses.replace(self._report, epoch=epoch)
