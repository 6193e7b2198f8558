"""Runs the computing of a role on a thread with the niceness of that role.

A thread may lower its priority (nice(2)) but, unless the process is privileged, never raise it again. So a worker
computes each role on a new thread. That starts with the niceness of the thread that creates it, which stays at 0 and
only waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from slipstream.router.protocol.messages import Role
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.process.niceness import niceness, stand_back

T = TypeVar("T")


class ComputeThread(Generic[T]):
    """Runs `work` under the conditions of a role: on the device of its pages, and with the role's niceness."""

    def __init__(self, work: Callable[[], T], config: WorkerConfig, role: Role, device: torch.device) -> None:
        self._work = work
        self._config = config
        self._role = role
        self._device = device
        self._result: T
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"compute-{role}", daemon=True)

    def result(self) -> T:
        """Starts the thread, waits for its end, and returns or raises what `work` does."""
        self.thread.start()
        self.thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # each thread starts with the first device
            stand_back(niceness(self._config, self._role, self._device.type), self._config.engine)
            self._result = self._work()
        except BaseException as error:  # raised again in the thread that waits
            self._error = error
