"""What a model answers to a request, and what it gets as the answer to one of its own."""

from __future__ import annotations

from typing import Any

from slipstream.workers.backends.python.model_api.parameters import parameters_text
from slipstream.workers.backends.python.model_api.tensors.errors import TritonError, TritonModelException
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor


class InferenceResponse:
    __module__ = "c_python_backend_utils"
    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: list[Tensor] | None = None,
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        outputs: list[Tensor] = [] if output_tensors is None else list(output_tensors)
        for output in outputs:
            if type(output) is not Tensor:
                if output is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise TypeError(f"InferenceResponse(): output_tensors must be Tensors, got {type(output).__name__}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse(): error must be a TritonError, got {type(error).__name__}: {error!r}")
        self._output_tensors = outputs
        self._error = error
        self._parameters = parameters_text(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._output_tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """JSON."""
        return self._parameters
