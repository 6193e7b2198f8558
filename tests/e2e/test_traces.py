"""One trace from the client through the router to the workers' processes, as a collector gets it."""

from __future__ import annotations

import json
import secrets
import urllib.request
from typing import Any

from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import prompt_of
from tests.support.router.otlp_collector import OtlpCollector, attributes_of

MAX_TOKENS = 24


def traced(cluster: ServingCluster, prompt: list[int], trace_id: str, flags: str) -> None:
    body = {"model": "slipstream-demo", "prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    headers = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-b7ad6b7169203331-{flags}"}
    request = urllib.request.Request(cluster.base_url + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
        json.load(answer)


def by_name(spans: list[Any]) -> dict[str, Any]:
    named = {span.name: span for span in spans}
    assert len(named) == len(spans), [span.name for span in spans]
    return named


def test_one_trace_goes_from_the_client_through_the_router_into_both_workers(
    cluster: ServingCluster, collector: OtlpCollector
) -> None:
    trace_id = secrets.token_hex(16)
    traced(cluster, prompt_of(300, variant=4711), trace_id, "01")
    spans = by_name(collector.spans_of(trace_id))
    root = spans["POST /v1/completions"]
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    parents = {"worker.prefill": "prefill", "worker.send": "transfer", "worker.receive": "transfer"}
    for child, parent in {**parents, "worker.decode": "decode"}.items():
        assert spans[child].parent_span_id == spans[parent].span_id
        assert spans[parent].parent_span_id == root.span_id
        assert root.start_time_unix_nano <= spans[child].start_time_unix_nano < spans[child].end_time_unix_nano
    workers = {name: attributes_of(span) for name, span in spans.items() if name.startswith("worker.")}
    assert workers["worker.prefill"]["slipstream.worker"] == workers["worker.send"]["slipstream.worker"]
    assert workers["worker.decode"]["slipstream.worker"] == workers["worker.receive"]["slipstream.worker"]
    assert workers["worker.decode"]["slipstream.worker"] != workers["worker.prefill"]["slipstream.worker"]
    assert workers["worker.prefill"]["slipstream.computed_tokens"] == 300
    assert workers["worker.decode"]["slipstream.output_tokens"] == MAX_TOKENS - 1
    assert workers["worker.decode"]["slipstream.outcome"] == "length"
    assert workers["worker.send"]["slipstream.bytes"] == workers["worker.receive"]["slipstream.bytes"] > 0
    assert workers["worker.receive"]["slipstream.gb_per_s"] > 0
    events = [attributes_of(event) for event in spans["worker.decode"].events]
    assert sum(event["slipstream.tokens"] for event in events) == MAX_TOKENS - 1


def test_a_local_prefill_has_the_spans_of_one_worker(cluster: ServingCluster, collector: OtlpCollector) -> None:
    trace_id = secrets.token_hex(16)
    traced(cluster, prompt_of(9, variant=4712), trace_id, "01")
    spans = by_name(collector.spans_of(trace_id))
    assert {name for name in spans if name.startswith("worker.")} == {"worker.prefill", "worker.decode"}
    assert spans["worker.prefill"].end_time_unix_nano <= spans["worker.decode"].end_time_unix_nano


def test_a_request_whose_caller_does_not_sample_it_has_no_span(
    cluster: ServingCluster, collector: OtlpCollector
) -> None:
    unsampled, sampled = secrets.token_hex(16), secrets.token_hex(16)
    traced(cluster, prompt_of(300, variant=4713), unsampled, "00")
    traced(cluster, prompt_of(9, variant=4714), sampled, "01")
    assert collector.spans_of(sampled)
    assert not collector.so_far(unsampled)
