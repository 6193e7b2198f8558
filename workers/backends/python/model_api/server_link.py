"""The server, as the API for models needs it. `instance` implements it; a process has one, because models call
functions of modules."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException

if TYPE_CHECKING:
    from asyncio import Future


class ServerLink(Protocol):
    """All methods may be called from any thread. `request` is an InferenceRequest, whose module
    imports this one."""

    def log(self, level: str, text: str, file: str, line: int) -> None:
        """`level` is "info", "warn", "error" or "verbose"."""

    def call(self, request: Any) -> Any:
        """Executes another model, and waits for its InferenceResponse. A failure is one with an error."""

    def call_decoupled(self, request: Any) -> Any:
        """Starts the execution of another model; a ResponseIterator."""

    def call_async(self, request: Any, is_decoupled: bool) -> Future[Any]:
        """Starts the execution of another model; a future of the running event loop for what `call` or
        `call_decoupled` returns."""

    def control(self, action: str, model: str, **fields: Any) -> Any:
        """Loads or unloads a model, or asks whether one is ready. Raises TritonModelException."""

    def metrics_changed(self, name: str) -> None:
        """A family of metrics."""

    def metrics_ended(self, family: dict[str, Any]) -> None:
        """The last family of a name is gone. It may be called at any point of any thread."""

    def model_dir(self) -> str:
        """The folder of the model's version."""

    def refusal(self, text: str) -> str:
        """What the server has against a call of this process, as models know it."""

    def poll(self) -> None:
        """Takes in what the server has sent, without waiting."""


class NoServer:
    """A process without a server: one that a model has started, or a model's own test."""

    def log(self, level: str, text: str, file: str, line: int) -> None:
        print(f"{level}: {file}:{line}: {text}", file=sys.stderr)

    def call(self, request: Any) -> Any:
        raise self._error()

    def call_decoupled(self, request: Any) -> Any:
        raise self._error()

    def call_async(self, request: Any, is_decoupled: bool) -> Future[Any]:
        raise self._error()

    def control(self, action: str, model: str, **fields: Any) -> Any:
        raise self._error()

    def metrics_changed(self, name: str) -> None:
        """There is nothing to show them to."""

    def metrics_ended(self, family: dict[str, Any]) -> None:
        """There is nothing that shows them."""

    def model_dir(self) -> str:
        raise self._error()

    def refusal(self, text: str) -> str:
        return text

    def poll(self) -> None:
        """There is nothing to read."""

    def _error(self) -> TritonModelException:
        return TritonModelException("This process has no connection to the server.")


class Process:
    """What this process has: the server, and the families of metrics by name."""

    __slots__ = ("families", "link")

    def __init__(self) -> None:
        self.link: ServerLink = NoServer()
        self.families: dict[str, Any] = {}


PROCESS = Process()
