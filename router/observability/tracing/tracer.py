"""Decides which requests are traced, and exports their traces when they have ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import Protocol

from slipstream.router.http.reader import Request
from slipstream.router.infer.requests.request_record import InferHistory
from slipstream.router.observability.tracing.context import TraceContext
from slipstream.router.observability.tracing.request_trace import RequestTrace, RpcRefusal, new_span_id

TRACED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})  # health checks and scrapes would be noise
TENSOR_PATHS = "/v2/models/"  # what begins so
TENSOR_CALLS = ("/infer", "/generate", "/generate_stream")  # and ends so
TRACE_ID_BITS = 64  # the lower bits of the id, by which sampling is decided as in OpenTelemetry's TraceIdRatioBased


@dataclass(slots=True)
class TraceCounts:
    """Counts since the start. Every sampled request ends up in one of them, or is still on its way."""

    num_exported: int = 0
    num_dropped: int = 0  # the queue was full
    num_failed: int = 0  # the collector did not take them


class TraceSink(Protocol):
    """Accepts complete traces without ever waiting."""

    @property
    def counts(self) -> TraceCounts: ...
    def put(self, trace: RequestTrace) -> None: ...


class Tracer:
    """If a caller says whether its trace is sampled, that holds; of traces that begin here, `sample_ratio` are
    sampled."""

    def __init__(self, sample_ratio: float, sink: TraceSink) -> None:
        self._bound = round(sample_ratio * 2**TRACE_ID_BITS)
        self._sink = sink
        self._random = Random()
        self._tensor_requests: InferHistory | None = None

    def trace_tensor_requests(self, history: InferHistory) -> None:
        """Traces requests to tensor models as well, from now on."""
        self._tensor_requests = history

    @property
    def counts(self) -> TraceCounts:
        """How many traces were sent, dropped or not accepted."""
        return self._sink.counts

    def begin(self, request: Request, parent: TraceContext | None) -> RequestTrace | None:
        """Begins the trace of a request; None if it is not traced."""
        path = request.path
        if path not in TRACED_PATHS and (self._tensor_requests is None or not is_tensor_request(path)):
            return None
        return self._begin(request.method, path, parent)

    def begin_rpc(self, service: str, name: str, parent: TraceContext | None) -> RequestTrace | None:
        """Begins the trace of a request to a tensor model by the RPC `name`; None if it is not traced."""
        if self._tensor_requests is None:
            return None
        trace = self._begin("", f"/{service}/{name}", parent)
        if trace is not None:
            trace.rpc = name
        return trace

    def accepted_rpc(self, trace: RequestTrace, request_id: str) -> None:
        """To be called when the request has just been accepted: others may have the same id later."""
        if self._tensor_requests is not None:
            trace.tensor_request = self._tensor_requests.get(request_id)

    def end_rpc(self, trace: RequestTrace, refusal: RpcRefusal | None = None) -> None:
        """Ends a trace after the response, whether or not it succeeded."""
        trace.end_s = time.monotonic()
        trace.rpc_refusal = refusal
        self._sink.put(trace)

    def _begin(self, method: str, path: str, parent: TraceContext | None) -> RequestTrace | None:
        if parent is not None:
            trace_id, is_sampled = parent.trace_id, parent.is_sampled
        else:
            number = self._random.getrandbits(128) or 1
            trace_id, is_sampled = f"{number:032x}", number % 2**TRACE_ID_BITS < self._bound
        if not is_sampled:
            return None
        return RequestTrace(trace_id, new_span_id(self._random), parent, method, path, time.monotonic())

    def end(self, trace: RequestTrace, status: int, http_request_id: str) -> None:
        """Ends a trace after the response, which had `status`, whether or not it succeeded."""
        trace.end_s = time.monotonic()
        trace.status = status
        trace.http_request_id = http_request_id
        if self._tensor_requests is not None and is_tensor_request(trace.path):
            trace.tensor_request = self._tensor_requests.get(http_request_id)
        self._sink.put(trace)


def is_tensor_request(path: str) -> bool:
    return path.startswith(TENSOR_PATHS) and path.endswith(TENSOR_CALLS)
