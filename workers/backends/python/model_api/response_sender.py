"""The way by which a model answers a request when it likes, and from any thread."""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException

FINAL = 1  # TRITONSERVER_RESPONSE_COMPLETE_FINAL


class ResponseChannel(Protocol):
    """Where the responses of one request go."""

    @property
    def is_decoupled(self) -> bool: ...

    def send(self, response: InferenceResponse | None, is_final: bool) -> None: ...

    def abandon(self) -> None:
        """No response can come any more, and none was the last. It may be called at any point of any thread."""

    def is_cancelled(self) -> bool: ...


class InferenceResponseSender:
    """Checks the order of responses: it ends once, and a model that is not decoupled sends exactly one."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_channel", "_is_closed", "_lock", "_num_sent")

    def __init__(self, channel: ResponseChannel | None) -> None:
        self._channel = channel
        self._lock = Lock()
        self._num_sent = 0
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send(): response must be an InferenceResponse, got {type(response).__name__}")
        self.count(response is not None, bool(flags))
        assert self._channel is not None
        self._channel.send(response, bool(flags))

    def is_cancelled(self) -> bool:
        """Whether the client does not want the answer any more."""
        return self._channel is not None and self._channel.is_cancelled()

    def count(self, has_response: bool, is_final: bool) -> None:
        """Checks and counts a response, also one that `execute` returns. Raises TritonModelException."""
        if self._channel is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        with self._lock:
            if not self._channel.is_decoupled:
                if has_response and self._num_sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if not has_response and is_final and not self._num_sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
            if self._is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._is_closed = is_final
            self._num_sent += 1

    def close(self) -> bool:
        """No more responses; whether it was still open."""
        with self._lock:
            was_open = not self._is_closed
            self._is_closed = True
        return was_open

    def __del__(self) -> None:
        if self._channel is not None and not self._is_closed:
            self._channel.abandon()
