"""A request: one that the model executes, or one that it makes of another model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slipstream.workers.backends.python.model_api.parameters import parameters_text
from slipstream.workers.backends.python.model_api.preferences import InferenceTrace, PreferredMemory
from slipstream.workers.backends.python.model_api.response_sender import InferenceResponseSender, ResponseChannel
from slipstream.workers.backends.python.model_api.server_link import PROCESS
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor
from slipstream.workers.backends.python.model_api.tensors.text import text_of

if TYPE_CHECKING:
    from asyncio import Future

RELEASE_ALL = 1  # TRITONSERVER_REQUEST_RELEASE_ALL


class InferenceRequest:
    """The constructor is for requests that a model makes."""

    __module__ = "c_python_backend_utils"
    __slots__ = (
        "_channel",
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_parameters",
        "_preferred_memory",
        "_release_flags",
        "_request_id",
        "_requested_output_names",
        "_sender",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: list[Tensor] | None = None,
        requested_output_names: list[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("InferenceRequest(): inputs, requested_output_names and model_name must be given")
        request_id = text_of(request_id, "InferenceRequest(): request_id")
        model_name = text_of(model_name, "InferenceRequest(): model_name")
        names = {text_of(name, "InferenceRequest(): requested_output_names") for name in requested_output_names}
        for tensor in inputs:
            if tensor is None:
                raise TritonModelException(
                    f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be "
                    "empty."
                )
            if type(tensor) is not Tensor:
                raise TypeError(f"InferenceRequest(): inputs must be Tensors, got {type(tensor).__name__}")
        if "" in names:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not "
                "be empty."
            )
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._requested_output_names: Any = names
        self._model_name = model_name
        self._model_version = int(model_version)
        self._flags = int(flags)
        self._timeout = int(timeout)
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters: Any = parameters_text(parameters)
        self._channel: ResponseChannel | None = None
        self._sender: InferenceResponseSender | None = None
        self._release_flags = RELEASE_ALL

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = int(flags)

    def timeout(self) -> int:
        """Microseconds; 0: none."""
        return self._timeout

    def parameters(self) -> str:
        """JSON."""
        if type(self._parameters) is not str:
            self._parameters = json.dumps(self._parameters, ensure_ascii=False, separators=(",", ":"))
        return str(self._parameters)

    def requested_output_names(self) -> set[str]:
        return set(self._requested_output_names)

    def trace(self) -> InferenceTrace:
        if self._trace is None:
            self._trace = InferenceTrace()
        return self._trace

    def get_response_sender(self) -> InferenceResponseSender:
        if self._sender is None:
            self._sender = InferenceResponseSender(self._channel)
        return self._sender

    def is_cancelled(self) -> bool:
        """Whether the client does not want the answer any more."""
        return self._channel is not None and self._channel.is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        self._release_flags = flags

    def exec(self, decoupled: bool = False) -> Any:
        """Executes the model. A failure is a response with an error. With `decoupled`: an iterator of responses."""
        return PROCESS.link.call_decoupled(self) if decoupled else PROCESS.link.call(self)

    def async_exec(self, decoupled: bool = False) -> Future[Any]:
        """`exec`, while the running event loop does other things. The execution begins at once."""
        return PROCESS.link.call_async(self, decoupled)
