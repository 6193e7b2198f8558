"""What the operators' commands need of a cluster's admin API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Where the cluster is known to be starting, a call `waits` until it is up. If its driver ends before it has
    answered, a call that `may_repeat` is made to the next one. An answer may take `timeout_s`, which is long because a
    cluster that is just coming up answers only once it is there."""

    waits: bool = True
    may_repeat: bool = False
    timeout_s: float = 60.0


DEFAULT = CallOptions()


class AdminPort(Protocol):
    """Calls raise CommandError, with one sentence, where there is no answer."""

    @property
    def restarts(self) -> int:
        """How often another driver has answered than the one before."""

    def get(self, path: str) -> dict[str, Any]: ...

    def post(self, path: str, body: dict[str, Any] | None = None, options: CallOptions = DEFAULT) -> dict[str, Any]: ...
