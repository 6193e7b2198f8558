"""The process that waits to be the next router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream.cluster.supervisor.members.actor_handles import end_by_force


class StandbyRouter:
    """It has imported the router, and reserves nothing, so that Ray always has room for it. `start` starts it, and
    begins its imports."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._actor: Any = None
        self._is_kept = False

    def keep(self) -> None:
        """From now on a process waits."""
        self._is_kept = True
        self.refill()

    def refill(self) -> None:
        """Begins to start a process, and waits for nothing; does nothing if there is one, or if none is wanted."""
        if self._is_kept and self._actor is None:
            self._actor = self._start()

    def take(self) -> Any:
        """The process, which is the router from now on; None if there is none."""
        actor, self._actor = self._actor, None
        return actor

    def end(self) -> None:
        """Idempotent."""
        self._is_kept = False
        end_by_force([self._actor])
        self._actor = None
