"""What the metadata of an inference RPC say about its requests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slipstream.router.observability.tracing.context import trace_context
from slipstream.router.process.random_bytes import random_bytes
from slipstream.router.tensors.infer_request import InferRequest

REQUEST_ID = "x-request-id"  # of a request, and of its answer
HARMLESS_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
STRICT_ERRORS = "triton_grpc_error"  # a stream ends with the status of its first failed request


class RpcMetadata:
    """Of one RPC. Values of keys that match `forwarded` become parameters of its requests."""

    __slots__ = ("_forwarded", "_request_id", "_trace_id", "has_strict_errors")

    def __init__(self, metadata: Iterable[tuple[str, str | bytes]], forwarded: re.Pattern[str] | None) -> None:
        self._request_id = self._trace_id = ""
        self._forwarded: dict[str, str] = {}
        self.has_strict_errors = False
        for name, value in metadata:
            if isinstance(value, bytes):
                continue
            if name == REQUEST_ID and HARMLESS_ID.fullmatch(value):
                self._request_id = value
            elif name == "traceparent":
                context = trace_context(value.encode(), None)
                self._trace_id = context.trace_id if context is not None else ""
            elif name == STRICT_ERRORS:
                self.has_strict_errors = value.lower() == "true"
            if forwarded is not None and forwarded.search(name):
                self._forwarded[name] = value

    def apply(self, request: InferRequest) -> None:
        """Gives a request its id for records, the client's if it has a harmless one, and what else came with it."""
        request.request_id = self._request_id or random_bytes(16).hex()
        request.trace_id = self._trace_id
        if self._forwarded:
            request.parameters |= self._forwarded
