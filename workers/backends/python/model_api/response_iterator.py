"""The responses of a decoupled model to a request of this one."""

from __future__ import annotations

from typing import Protocol

from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse


class ResponseSource(Protocol):
    """Where the responses come from."""

    def next(self) -> tuple[InferenceResponse, bool]:
        """Waits for the next response; and whether it was the last."""

    def cancel(self) -> None: ...


class ResponseIterator:
    """The last response is empty if the model ended without one. When all have come, a second loop gives them again."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_is_finished", "_position", "_responses", "_source")

    def __init__(self, source: ResponseSource) -> None:
        self._source = source
        self._responses: list[InferenceResponse] = []
        self._position = 0
        self._is_finished = False

    def __iter__(self) -> ResponseIterator:
        if self._is_finished and self._position >= len(self._responses):
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if not self._is_finished:
            response, self._is_finished = self._source.next()
            self._responses.append(response)
            self._position = len(self._responses)
            return response
        if self._position >= len(self._responses):
            raise StopIteration
        self._position += 1
        return self._responses[self._position - 1]

    def cancel(self) -> None:
        """The responses that have not come are not wanted."""
        if not self._is_finished:
            self._source.cancel()
