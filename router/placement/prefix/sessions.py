"""Where the latest request of each conversation ran."""

from __future__ import annotations

from collections import OrderedDict

from slipstream.router.protocol.messages import Role
from slipstream.router.registry.worker_registry import WorkerState

MAX_SESSIONS = 65_536


class Sessions:
    """The `capacity` most recently used conversations, by tenant and name. Workers are remembered by name, because a
    worker that reconnects still has its prefix cache. Sans-IO."""

    def __init__(self, capacity: int = MAX_SESSIONS) -> None:
        self._capacity = capacity
        self._workers: dict[str, WorkerState] = {}  # the connected workers by name
        self._names: OrderedDict[tuple[str, str], dict[Role, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def add(self, worker: WorkerState) -> None:
        """A worker has joined."""
        self._workers[worker.name] = worker

    def remove(self, worker: WorkerState) -> None:
        """A worker was lost. Unknown workers are ignored."""
        if self._workers.get(worker.name) is worker:
            del self._workers[worker.name]

    def note(self, session: str, worker: WorkerState, tenant: str = "") -> None:
        """A request of the conversation was placed on the worker. Does nothing if `session` is empty."""
        if not session:
            return
        key = tenant, session
        self._names.setdefault(key, {})[worker.hello.role] = worker.name
        self._names.move_to_end(key)
        if len(self._names) > self._capacity:
            self._names.popitem(last=False)

    def worker_of(self, session: str, role: Role, tenant: str = "") -> WorkerState | None:
        """The worker of the role that the conversation last ran on, if it is connected and takes new work."""
        if not session:
            return None
        worker = self._workers.get(self._names.get((tenant, session), {}).get(role, ""))
        return None if worker is None or worker.draining or worker.hello.role != role else worker
