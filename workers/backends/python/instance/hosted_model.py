"""The model that an instance runs, and what executes its batches: what the program needs of them."""

from __future__ import annotations

from typing import Any, Protocol

from slipstream.workers.backends.python.instance.memory.input_memory import InputMemory
from slipstream.workers.backends.python.instance.memory.shared_files import SharedFiles
from slipstream.workers.backends.python.instance.wire.frames import FrameMessage
from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink
from slipstream.workers.backends.python.instance.wire.tensor_writer import TensorWriter


class InstanceMemory:
    """Where the tensors of an instance come from, and where they go."""

    __slots__ = ("files", "inputs", "writer")

    def __init__(self, files: SharedFiles, inputs: InputMemory, writer: TensorWriter) -> None:
        self.files = files
        self.inputs = inputs
        self.writer = writer


class InstanceRunner(Protocol):
    """Executes the batches of a model that is initialised."""

    def execute(self, message: FrameMessage, link: InstanceRouterLink) -> None:
        """Executes a batch and sends `executed`. A failure of the model is said there."""

    def cancel(self, n: int) -> None:
        """The client does not want this request any more."""

    def drop_all(self) -> None:
        """The connection is lost: nothing that is open will be answered."""


class HostedModel(Protocol):
    """One model, by the methods that the router's commands call, in this order. They raise what its code raises."""

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]: ...

    def initialize(self, head: dict[str, Any], memory: InstanceMemory) -> InstanceRunner:
        """`head` is that of the message `initialize`."""

    def finalize(self) -> None:
        """Also of a model that was not initialised."""

    def failure_of(self, exception: BaseException) -> tuple[str, str]:
        """The text of what a method has raised, and its code of Triton's."""
