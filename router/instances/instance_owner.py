"""What instances tell the one that started them."""

from __future__ import annotations

from typing import Protocol

from slipstream.router.instances.frames.frame_reader import Json
from slipstream.router.instances.messages import (
    ControlCall,
    Executed,
    InstanceEnd,
    InstanceResponse,
    LogLine,
    ModelCall,
)
from slipstream.router.tensors.infer_error import InferErrorCode


class InstanceOwner(Protocol):
    """Of one instance. All calls come on the event loop, none from within a call of the link. `ended` comes exactly
    once, and nothing after it."""

    def connected(self, *, is_ready: bool) -> None:
        """The process has connected. `is_ready`: its model is initialised, by an earlier router or over an earlier
        connection; what it was given before has failed."""

    def disconnected(self) -> None:
        """The connection is lost, but its host has not said that the process is gone. What it was given has failed.
        `connected` or `ended` follows."""

    def completed(self, config: Json) -> None: ...

    def ready(self) -> None: ...

    def failed(self, error: str, code: InferErrorCode) -> None:
        """Import, completion or initialisation has failed with this Python error; `ended` follows."""

    def executed(self, result: Executed) -> None:
        """The instance is free for the next batch."""

    def responded(self, n: int, response: InstanceResponse | None, *, is_final: bool) -> None: ...

    def called(self, call: ModelCall) -> None: ...

    def call_cancelled(self, call: int) -> None: ...

    def controlled(self, call: ControlCall) -> None: ...

    def logged(self, line: LogLine) -> None: ...

    def metrics_changed(self, families: list[Json]) -> None: ...

    def ended(self, end: InstanceEnd) -> None: ...


class PortObserver(Protocol):
    """Hears of hosts."""

    def hosts_changed(self) -> None:
        """A host has connected or is lost."""
