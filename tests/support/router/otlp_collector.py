"""A collector of spans: what an OTLP/HTTP receiver gets, as protobuf."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpCollector:
    """Keeps the spans that come in."""

    def __init__(self) -> None:
        self._spans: list[Any] = []
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def spans_of(self, trace_id: str, timeout_s: float = 20.0) -> list[Any]:
        """The spans of a trace, once that of its request has come."""
        with self._came:
            assert self._came.wait_for(lambda: any(s.kind == 2 for s in self.so_far(trace_id)), timeout_s)
            return self.so_far(trace_id)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def so_far(self, trace_id: str) -> list[Any]:
        """Those that have come."""
        return [span for span in self._spans if span.trace_id.hex() == trace_id]

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._came:
            for of_resource in request.resource_spans:
                for scope in of_resource.scope_spans:
                    self._spans.extend(scope.spans)
            self._came.notify_all()


def attributes_of(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
