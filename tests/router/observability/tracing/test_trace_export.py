"""Spans as a collector gets them: over real HTTP, as protobuf, with the whole router before it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.router_config import RouterConfig, TracingConfig
from slipstream.router.observability.tracing.export import OtlpExporter
from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.spans import spans_of
from slipstream.router.process.addresses import Addresses
from slipstream.router.protocol.generation import GenerationError, GenerationFinish, Usage
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.router import Router
from tests.router.test_http_router import CONFIG, TOKEN, Exchange, PlayedWorker, ask, completion, until_ready
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ALIAS = "latest"


class Collector:
    """Keeps the spans that come in. `gate` holds answers back while it is not set."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        self.status = 200
        self.came = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.gate.wait()
                if collector.status == 200:  # before the answer: who has it may count what came
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                with contextlib.suppress(OSError):
                    self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self.came:
            for of_resource in request.resource_spans:
                self.resources.append(of_resource.resource)
                for scope in of_resource.scope_spans:
                    self.spans.extend(scope.spans)
            self.came.notify_all()

    def wait_for(self, num_servers: int) -> list[Any]:
        """All spans, once those of so many requests have come."""
        with self.came:
            assert self.came.wait_for(lambda: sum(s.kind == 2 for s in self.spans) >= num_servers, timeout=20)
            return list(self.spans)

    def close(self) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@contextlib.asynccontextmanager
async def routing(
    tracing: TracingConfig, *roles: str, **dispatch: Any
) -> AsyncIterator[tuple[Addresses, list[PlayedWorker]]]:
    """A router with played workers that are ready."""
    config: RouterConfig = replace(CONFIG, tracing=tracing, dispatch=replace(CONFIG.dispatch, **dispatch))
    source = ModelSource(MODEL, MODEL_DIR, has_prefill_pool="prefill" in roles, aliases=(ALIAS,))
    router = Router(config, [source], TOKEN)
    addresses = await router.start()
    workers = []
    try:
        workers = [await PlayedWorker(role, addresses).join() for role in roles]  # type: ignore[arg-type]
        await until_ready(addresses.http)
        yield addresses, workers
    finally:
        for worker in workers:
            worker.leave()
        await router.stop()


async def post(addresses: Addresses, body: object, **headers: str) -> tuple[int, bytes]:
    exchange = Exchange(*await asyncio.open_connection(addresses.http.host, addresses.http.port))
    data = orjson.dumps(body)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n{head}\r\n"
    exchange.writer.write(head.encode() + data)
    return await exchange.end()


def attributes(span: Any) -> dict[str, Any]:
    values = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        values[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return values


def test_a_remote_prefill_gives_a_span_for_each_stage_below_the_callers_span(collector: Collector) -> None:
    async def main() -> None:
        async with routing(TracingConfig(collector.url), "decode", "prefill") as (addresses, _):
            before_ns = time.time_ns()
            headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "rojo=1"}
            body = completion(300, max_tokens=8, temperature=0.5, user="acme", model=ALIAS)
            status, answer = await post(addresses, body, **headers)
            assert status == 200
            spans = await asyncio.to_thread(collector.wait_for, 1)
            after_ns = time.time_ns()
            answer_id = orjson.loads(answer)["id"]
            explained = orjson.loads((await ask(addresses.http, "GET", f"/v1/requests/{answer_id}/explain"))[1])
        assert (explained["trace_id"], explained["model"]) == (TRACE, MODEL)
        [server] = [span for span in spans if span.kind == 2]
        stages = [span for span in spans if span is not server]
        assert {span.trace_id.hex() for span in spans} == {TRACE}
        assert server.parent_span_id.hex() == CALLER
        assert server.trace_state == "rojo=1"
        assert all(span.parent_span_id == server.span_id for span in stages)
        assert len({span.span_id for span in spans}) == len(spans)
        assert [span.name for span in stages] == ["queued", "reserve", "prefill", "transfer", "decode"]
        assert before_ns - 10**6 <= server.start_time_unix_nano
        assert server.end_time_unix_nano <= after_ns + 10**6
        for span, then in pairwise(stages):
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert abs(span.end_time_unix_nano - then.start_time_unix_nano) < 1000
        assert server.start_time_unix_nano <= stages[0].start_time_unix_nano
        assert stages[-1].end_time_unix_nano <= server.end_time_unix_nano
        attrs = attributes(server)
        expected = {
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": ALIAS,
            "gen_ai.response.model": MODEL,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.max_tokens": 8,
            "gen_ai.response.id": answer_id,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.input_tokens": 300,
            "gen_ai.usage.output_tokens": 8,
            "slipstream.request.tenant": "acme",
        }
        assert {key: attrs.get(key) for key in expected} == expected
        assert "gen_ai.request.top_p" not in attrs
        workers = [attributes(span).get("slipstream.worker") for span in stages]
        assert workers == [None, "decode-0", "prefill-0", "prefill-0 -> decode-0", "decode-0"]
        [placed] = stages[0].events
        assert placed.name == "placed"
        placement = attributes(placed)
        assert placement["slipstream.placement.prefill"] == "prefill-0"
        assert any(
            candidate.startswith("prefill-0 -> decode-0: cost")
            for candidate in placement["slipstream.placement.candidates"]
        )
        [resource] = collector.resources
        assert attributes(resource)["service.name"] == "slipstream"

    run(main)


def test_a_request_at_fault_itself_fails_in_its_stage_and_is_no_error_of_the_server(
    collector: Collector,
) -> None:
    async def main() -> None:
        async with routing(TracingConfig(collector.url), "decode") as (addresses, [worker]):
            worker.fails = True
            status, _ = await post(addresses, completion(5, max_tokens=4), traceparent="00-not-one-01")
            assert status == 400
            spans = await asyncio.to_thread(collector.wait_for, 1)
        [server] = [span for span in spans if span.kind == 2]
        assert server.parent_span_id == b""
        assert server.trace_id != bytes(16)
        assert server.status.code == 0
        assert attributes(server)["error.type"] == "400"
        assert [span.name for span in spans if span.status.code == 2 and span is not server] == ["prefill"]

    run(main)


def test_a_refused_request_has_a_span_that_says_why(collector: Collector) -> None:
    async def main() -> None:
        async with routing(TracingConfig(collector.url), "decode", max_queued_requests=1) as (addresses, [worker]):
            worker.may_go_on.clear()
            posts = [asyncio.create_task(post(addresses, completion(5, max_tokens=3))) for _ in range(10)]
            [refused], others = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
            assert refused.result()[0] == 503
            assert (await post(addresses, completion(1200, max_tokens=3)))[0] == 400
            spans = await asyncio.to_thread(collector.wait_for, 2)
            worker.may_go_on.set()
            await asyncio.gather(*others)
        full, too_long = sorted(spans, key=lambda span: span.end_time_unix_nano)[:2]
        assert (full.status.code, full.status.message) == (2, "1 requests are waiting already; at most 1 may")
        attrs = attributes(full)
        assert (attrs["slipstream.request.outcome"], attrs["error.type"]) == ("queue_full", "503")
        assert (attrs["slipstream.refusal.num_waiting"], attrs["slipstream.refusal.max_waiting"]) == (1, 1)
        assert too_long.status.code == 0  # the client's mistake
        assert attributes(too_long)["slipstream.request.outcome"] == "prompt_too_long"
        assert attributes(too_long)["slipstream.refusal.max_model_len"] == 1000

    run(main)


def test_a_caller_that_does_not_sample_is_obeyed_and_so_is_the_ratio(collector: Collector) -> None:
    async def main() -> None:
        unsampled = f"00-{TRACE}-{CALLER}-00"
        async with routing(TracingConfig(collector.url), "decode") as (addresses, _):
            await post(addresses, completion(5, max_tokens=2), traceparent=unsampled)
            await ask(addresses.http, "GET", "/v1/models")
            await post(addresses, completion(5, max_tokens=2))
            spans = await asyncio.to_thread(collector.wait_for, 1)
        async with routing(TracingConfig(collector.url, sample_ratio=0.0), "decode") as (addresses, _):
            await post(addresses, completion(5, max_tokens=2))
            await post(addresses, completion(5, max_tokens=2), traceparent=f"00-{TRACE}-{CALLER}-01")
            # The end of the router sends what waits.
        all_spans = collector.wait_for(2)
        assert [span.trace_id.hex() == TRACE for span in spans if span.kind == 2] == [False]
        assert [span.trace_id.hex() == TRACE for span in all_spans if span.kind == 2] == [False, True]

    run(main)


def test_a_collector_that_does_not_answer_delays_no_request_and_no_end(collector: Collector) -> None:
    async def main() -> None:
        collector.gate.clear()
        tracing = TracingConfig(collector.url, queue_requests=2, timeout_s=0.3)
        async with routing(tracing, "decode") as (addresses, _):
            for _number in range(80):
                status, _ = await post(addresses, completion(5, max_tokens=2))
                assert status == 200
            page = (await ask(addresses.http, "GET", "/metrics"))[1].decode()
            [dropped] = [line for line in page.splitlines() if line.startswith('slipstream:traces_total{outcome="dro')]
            assert float(dropped.split()[-1]) > 0

    run(main)


def one_trace() -> RequestTrace:
    trace = RequestTrace(TRACE, CALLER, None, "POST", "/v1/completions", 1.0, 2.0, 200)
    trace.answered([RequestRecord("r", "", 0, 1, Timeline(1.0))], {})
    return trace


def test_a_stream_that_breaks_off_is_an_error_although_its_status_was_good() -> None:
    trace = one_trace()
    error = GenerationError("worker_failed", "attempt 5 of 5 failed")
    trace.records[0].end(GenerationFinish("error", Usage(1, 0, 0), error=error))
    [server] = spans_of(trace, lambda: "1" * 16)
    assert (server.error, server.attributes["error.type"]) == ("attempt 5 of 5 failed", "worker_failed")


def test_traces_that_the_collector_refuses_are_counted(collector: Collector) -> None:
    collector.status = 400
    exporter = OtlpExporter(f"{collector.url}/v1/traces", MODEL, queue_traces=4, timeout_s=5.0)
    exporter.start()
    exporter.put(one_trace())
    exporter.close(10.0)
    assert (exporter.counts.num_exported, exporter.counts.num_failed, exporter.counts.num_dropped) == (0, 1, 0)
    exporter.put(one_trace())
    assert exporter.counts.num_dropped == 1


def test_a_trace_that_cannot_be_told_costs_its_batch_and_no_later_one(collector: Collector) -> None:
    exporter = OtlpExporter(f"{collector.url}/v1/traces", MODEL, queue_traces=4, timeout_s=5.0)
    broken = one_trace()
    broken.trace_id = "no hexadecimal number"
    exporter.put(broken)
    exporter.start()
    while not exporter.counts.num_failed:
        time.sleep(0.001)
    exporter.put(one_trace())
    exporter.close(10.0)
    assert (exporter.counts.num_exported, exporter.counts.num_failed) == (1, 1)


def test_the_end_sends_what_waits(collector: Collector) -> None:
    exporter = OtlpExporter(f"{collector.url}/v1/traces", MODEL, queue_traces=400, timeout_s=5.0)
    for _ in range(200):
        exporter.put(one_trace())
    exporter.start()
    exporter.close(20.0)
    assert exporter.counts.num_exported == 200
    assert len(collector.spans) == 200


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    code = "import sys, slipstream.router.router; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
