"""Sends traces to a collector over OTLP/HTTP. OpenTelemetry is imported only here, and only if there is an endpoint.

    event loop --put--> bounded queue --> thread: records to spans to protobuf --POST--> collector

The event loop never waits: if the queue is full, a trace is dropped and counted. The exporter's environment variables
(`OTEL_EXPORTER_OTLP_HEADERS`, `..._CERTIFICATE`, `..._COMPRESSION`, `OTEL_RESOURCE_ATTRIBUTES`) have their effect.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from random import Random

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from slipstream.router.observability.tracing.request_trace import RequestTrace, new_span_id
from slipstream.router.observability.tracing.span import Span
from slipstream.router.observability.tracing.spans import spans_of
from slipstream.router.observability.tracing.tracer import TraceCounts

log = logging.getLogger(__name__)

BATCH_TRACES = 64  # traces per POST
GATHER_S = 0.5  # how long a batch that is not full waits for more
KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
SCOPE = InstrumentationScope("slipstream.router")
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExporter:
    """Life cycle: `start`, then `put` from the event loop, then `close`. `counts` may be read at any time. `model` is
    an attribute of all spans; "" where there are several: each span of a request names its own."""

    def __init__(
        self,
        endpoint: str,
        model: str,
        *,
        queue_traces: int,
        timeout_s: float,
    ) -> None:
        self.counts = TraceCounts()
        self._random = Random()
        self._queue_traces = queue_traces
        self._waiting: deque[RequestTrace] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._was_failing = False
        named = {"slipstream.model": model} if model else {}
        self._resource = Resource.create({"service.name": "slipstream", **named})
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)
        # The library would log every failed batch with a stack trace; we log the first failure, and count.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, trace: RequestTrace) -> None:
        """Queues a trace. If too many are waiting, because the collector is slow or unreachable, it is dropped."""
        with self._changed:
            if len(self._waiting) >= self._queue_traces or self._is_closing:
                self.counts.num_dropped += 1
                return
            self._waiting.append(trace)
            if len(self._waiting) in (1, BATCH_TRACES):
                self._changed.notify()

    def close(self, within_s: float) -> None:
        """Sends the queued traces, for at most `within_s`; the rest counts as dropped. Blocks, so call it in a
        thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._exporter.shutdown()  # interrupts its waits between retries
        with self._changed:
            self.counts.num_dropped += len(self._waiting)
            self._waiting.clear()

    def _run(self) -> None:
        while batch := self._next_batch():
            has_left = self._send(batch)
            if has_left:
                self.counts.num_exported += len(batch)
            else:
                self.counts.num_failed += len(batch)
            self._tell(is_failing=not has_left)
        self._exporter.shutdown()

    def _send(self, batch: Sequence[RequestTrace]) -> bool:
        offset_s = time.time() - time.monotonic()
        try:
            spans = [
                _otel_span(trace, span, self._resource, offset_s) for trace in batch for span in self._spans(trace)
            ]
            return bool(spans) and self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # one trace that cannot be exported must not end the thread
            log.exception("traces of %d requests could not be made into spans", len(batch))
            return False

    def _next_batch(self) -> list[RequestTrace]:
        """Waits for traces; empty when the exporter is closed and no more will come."""
        with self._changed:
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            if len(self._waiting) < BATCH_TRACES and not self._is_closing:
                self._changed.wait(GATHER_S)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_TRACES))]

    def _spans(self, trace: RequestTrace) -> Sequence[Span]:
        return list(spans_of(trace, lambda: new_span_id(self._random)))

    def _tell(self, is_failing: bool) -> None:
        if is_failing != self._was_failing:
            self._was_failing = is_failing
            if is_failing:
                log.warning("the trace collector does not take spans; they are dropped until it does")
            else:
                log.info("the trace collector takes spans again")


def _otel_span(trace: RequestTrace, span: Span, resource: Resource, offset_s: float) -> ReadableSpan:
    state = TraceState.from_header([trace.parent.state]) if trace.parent is not None and trace.parent.state else None
    trace_id = int(trace.trace_id, 16)

    def context(span_id: str, is_remote: bool) -> SpanContext:
        return SpanContext(trace_id, int(span_id, 16), is_remote, SAMPLED, state)

    def nanoseconds(at_s: float) -> int:
        return int((at_s + offset_s) * 1e9)

    is_of_caller = span.kind == "server"
    return ReadableSpan(
        span.name,
        context=context(span.span_id, False),
        parent=context(span.parent_id, is_of_caller) if span.parent_id is not None else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(one.name, one.attributes, nanoseconds(one.time_s)) for one in span.events],
        kind=KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error is not None else Status(),
        start_time=nanoseconds(span.begin_s),
        end_time=nanoseconds(span.end_s),
        links=[Link(context(span_id, False)) for span_id in span.links],
        instrumentation_scope=SCOPE,
    )
