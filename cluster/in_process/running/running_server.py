"""A server within a program, from its start to its stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol
from weakref import finalize

from slipstream.cluster.in_process.running.embedded_router import EmbeddedRouter
from slipstream.cluster.in_process.running.server_thread import ServerThread
from slipstream.router.tensor_models import TensorModels
from slipstream.router.tensors.infer_service import InferService


@dataclass(frozen=True, slots=True)
class RunningServer:
    """`stop` is also called when the program has forgotten the server."""

    thread: ServerThread
    router: EmbeddedRouter
    stop: finalize[[], Any]

    @property
    def tensors(self) -> TensorModels:
        return self.router.tensors

    @property
    def service(self) -> InferService:
        return self.router.tensors.service


class ServerHandle(Protocol):
    """What models keep of their server: `Server`."""

    @property
    def running(self) -> RunningServer:
        """Raises InvalidArgumentError if it is not started."""
