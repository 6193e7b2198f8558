"""Work on a thread that is as urgent as it is to be.

A thread may stand back for others (nice(2)) but never come forward again, unless the process is privileged. So what
computes in one role and then in the other does it on a thread for each: it begins with the niceness of the thread that
makes it, which stays at 0 and only waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from slipstream.router.messages import Role
from slipstream.workers.config import EngineConfig
from slipstream.workers.niceness import niceness, stand_back

T = TypeVar("T")


class ComputeThread(Generic[T]):
    """Runs `work` as a worker in a role computes: on the device of its pages, with the role's niceness."""

    def __init__(self, work: Callable[[], T], engine: EngineConfig, role: Role, device: torch.device) -> None:
        self._work = work
        self._engine = engine
        self._role = role
        self._device = device
        self._result: T
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"compute-{role}", daemon=True)

    def result(self) -> T:
        """Begins, waits for the end. Raises what `work` raises."""
        self.thread.start()
        self.thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # each thread begins at the first one
            stand_back(niceness(self._engine, self._role, self._device.type), self._engine)
            self._result = self._work()
        except BaseException as error:  # goes on in the thread that waits
            self._error = error
