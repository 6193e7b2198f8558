"""What the metadata of an inference RPC say about its requests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slipstream.router.observability.tracing.context import TraceContext, trace_context
from slipstream.router.process.random_bytes import random_bytes
from slipstream.router.tensors.infer_request import InferRequest

REQUEST_ID = "x-request-id"  # of a request, and of its answer
HARMLESS_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
STRICT_ERRORS = "triton_grpc_error"  # a stream ends with the status of its first failed request


class RpcMetadata:
    """Of one RPC. Values of keys that match `forwarded` become parameters of its requests. `trace` is the caller's."""

    __slots__ = ("_forwarded", "_request_id", "has_strict_errors", "trace")

    def __init__(self, metadata: Iterable[tuple[str, str | bytes]], forwarded: re.Pattern[str] | None) -> None:
        self._request_id = ""
        traceparent: bytes | None = None
        tracestate: bytes | None = None
        self._forwarded: dict[str, str] = {}
        self.has_strict_errors = False
        for name, value in metadata:
            if isinstance(value, bytes):
                continue
            if name == REQUEST_ID and HARMLESS_ID.fullmatch(value):
                self._request_id = value
            elif name == "traceparent":
                traceparent = value.encode()
            elif name == "tracestate":
                tracestate = value.encode()
            elif name == STRICT_ERRORS:
                self.has_strict_errors = value.lower() == "true"
            if forwarded is not None and forwarded.search(name):
                self._forwarded[name] = value
        self.trace: TraceContext | None = trace_context(traceparent, tracestate)

    def apply(self, request: InferRequest) -> None:
        """Gives a request its id for records, the client's if it has a harmless one, and what else came with it."""
        request.request_id = self._request_id or random_bytes(16).hex()
        request.trace_id = "" if self.trace is None else self.trace.trace_id
        if self._forwarded:
            request.parameters |= self._forwarded
