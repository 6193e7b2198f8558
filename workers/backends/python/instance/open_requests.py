"""The requests that have not ended, and the way of each one's responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.workers.backends.python.instance.wire.tensor_writer import Payload, TensorWriter
from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.tensors.errors import TritonError

if TYPE_CHECKING:
    from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink

NO_RESPONSE = "The model has dropped the request without a response."


class RequestChannel:
    """Of one request. It ends once: with `executed`, or with a final response. `is_null`: a place of a direct sequence
    batcher without a request; nothing is sent for it."""

    __slots__ = (
        "_open",
        "_was_cancelled",
        "_writer",
        "into",
        "is_decoupled",
        "is_null",
        "link",
        "n",
        "names",
    )

    def __init__(
        self,
        n: int,
        names: Any,
        into: dict[str, Any] | None,
        is_decoupled: bool,
        link: InstanceRouterLink,
        writer: TensorWriter,
        opened: dict[int, RequestChannel],
        is_null: bool = False,
    ) -> None:
        self.n = n
        self.names = names
        self.into = into
        self.is_decoupled = is_decoupled
        self.link = link
        self._writer = writer
        self._open = opened
        self._was_cancelled = False
        self.is_null = is_null
        opened[n] = self

    def send(self, response: InferenceResponse | None, is_final: bool) -> None:
        """Sends one of the responses; to a router that is gone, nothing."""
        if is_final:
            self._open.pop(self.n, None)
        if self.is_null or self.link.is_lost:
            return
        payload = Payload()
        text = "null"
        if response is not None:
            text = self._writer.response(response, self.names, self.into, payload)
        flag = "true" if is_final else "false"
        self.link.send(
            f'{{"type":"response","n":{self.n},"response":{text},"final":{flag}}}', payload.pieces, payload.num_bytes
        )

    def abandon(self) -> None:
        if self._open.pop(self.n, None) is None or self.is_null or self.link.is_lost:
            return
        text = "null"
        if not self.is_decoupled:
            error = InferenceResponse(error=TritonError(NO_RESPONSE))
            text = self._writer.response(error, (), None, Payload())
        self.link.send_soon(f'{{"type":"response","n":{self.n},"response":{text},"final":true}}')

    def is_cancelled(self) -> bool:
        if not self._was_cancelled:
            self.link.poll()
        return self._was_cancelled or self.link.is_lost

    def cancel(self) -> None:
        self._was_cancelled = True

    def close(self) -> None:
        """The request ends with `executed`."""
        self._open.pop(self.n, None)
