"""The metrics page has the names that users graph, and they move by exactly what was asked for."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import openai
import pytest

from tests.support.e2e.freezing import frozen
from tests.support.e2e.observation import Scrape, moved, status_of, wait_for_phase, wait_until_at_rest
from tests.support.e2e.raw_connection import connected, post
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import GREEDY, MODEL, complete, prompt_of

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
COUNTERS = (
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
)
SECONDS = (
    "vllm:time_to_first_token_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
)
SIZES = (
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_best_of",
    "vllm:request_params_max_tokens",
    "vllm:iteration_tokens_total",
    "slipstream:iteration_sequences",
)
PAGE_STATES = ("free", "cached", "active", "reserved", "held", "draining")


def test_every_name_is_there_in_its_kind(cluster: ServingCluster, client: openai.OpenAI) -> None:
    complete(client, prompt_of(40), 2)
    wait_until_at_rest(cluster)
    scrape = Scrape.of(cluster)
    for name in GAUGES:
        assert scrape.kind(name) == "gauge"
        assert scrape.value(name) == 0
    for name in COUNTERS:
        assert scrape.kind(name) == "counter"
        assert f"{name}_total" in scrape.names
    for name in SECONDS + SIZES:
        assert scrape.kind(name) == "histogram"
        counts = [count for _, count in scrape.buckets(name)]
        assert counts == sorted(counts)
        assert counts[-1] == scrape.value(f"{name}_count") > 0
    for name in ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"):
        bounds = [bound for bound, _ in scrape.buckets(name)]
        assert sum(0.005 <= bound <= 0.5 for bound in bounds) >= 8  # where service levels are set
    for worker, role in (("prefill-0", "prefill"), ("decode-0", "decode")):
        pages = {
            state: scrape.value("slipstream:worker_pages", worker=worker, role=role, state=state)
            for state in PAGE_STATES
        }
        credits = scrape.value("slipstream:worker_credits", worker=worker, role=role, kind="pages")
        assert sum(pages.values()) == pages["free"] + pages["cached"] == credits > 0
        assert scrape.value("slipstream:worker_leases", worker=worker) == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_counts_and_histograms_move_by_exactly_one_request(
    cluster: ServingCluster, client: openai.OpenAI, stream: bool
) -> None:
    wait_until_at_rest(cluster)
    before = Scrape.of(cluster)
    fields: dict[str, Any] = {"model": MODEL, "prompt": prompt_of(70, variant=600), "max_tokens": 9, **GREEDY}
    salt = {"cache_salt": f"metrics {stream}"}
    if stream:
        with client.completions.create(stream=True, extra_body=salt, **fields) as chunks:
            assert list(chunks)
    else:
        client.completions.create(extra_body=salt, **fields)
    wait_until_at_rest(cluster)
    after = Scrape.of(cluster)
    expected = {
        "vllm:prompt_tokens_total": 70,
        "vllm:generation_tokens_total": 9,
        "vllm:prefix_cache_queries_total": 70,
        "vllm:prefix_cache_hits_total": 0,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:inter_token_latency_seconds_count": 8,
        "vllm:time_per_output_token_seconds_count": 8,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:request_queue_time_seconds_count": 1,
        "vllm:request_prefill_time_seconds_count": 1,
        "vllm:request_decode_time_seconds_count": 1,
        "vllm:request_prompt_tokens_count": 1,
        "vllm:request_prompt_tokens_sum": 70,
        "vllm:request_generation_tokens_count": 1,
        "vllm:request_generation_tokens_sum": 9,
        "vllm:request_params_n_count": 1,
        "vllm:request_params_n_sum": 1,
        "vllm:request_params_max_tokens_sum": 9,
        "slipstream:transfers_total": 1,
    }
    assert {name: moved(before, after, name) for name in expected} == expected
    assert moved(before, after, "vllm:request_success_total", finished_reason="length") == 1
    assert moved(before, after, "vllm:request_success_total") == 1
    assert moved(before, after, "slipstream:finishes_total", outcome="length") == 1
    assert moved(before, after, "slipstream:placements_total", reason="long_prompt") == 1
    assert moved(before, after, "slipstream:placements_total") == 1
    whole_s = moved(before, after, "vllm:e2e_request_latency_seconds_sum")
    first_s = moved(before, after, "vllm:time_to_first_token_seconds_sum")
    gaps_s = moved(before, after, "vllm:inter_token_latency_seconds_sum")
    assert first_s > 0
    assert gaps_s > 0
    assert first_s + gaps_s <= whole_s + 1e-6  # sums of floats


def test_prefix_cache_hits_are_those_of_the_usage(cluster: ServingCluster, client: openai.OpenAI) -> None:
    prompt = prompt_of(70, variant=601)
    complete(client, prompt, 2)
    wait_until_at_rest(cluster)
    before = Scrape.of(cluster)
    usage = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, **GREEDY).usage
    after = Scrape.of(cluster)
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 64
    assert moved(before, after, "vllm:prefix_cache_hits_total") == 64
    assert moved(before, after, "vllm:prefix_cache_queries_total") == 70


def test_choices_and_refusals_are_counted(cluster: ServingCluster, client: openai.OpenAI) -> None:
    wait_until_at_rest(cluster)
    before = Scrape.of(cluster)
    client.completions.create(model=MODEL, prompt=prompt_of(20), max_tokens=3, n=4)
    with pytest.raises(openai.BadRequestError):
        complete(client, prompt_of(20), 3, temperature=-1)
    after = Scrape.of(cluster)
    assert moved(before, after, "vllm:request_params_n_sum") == 4
    assert moved(before, after, "vllm:request_success_total") == 4
    assert moved(before, after, "vllm:generation_tokens_total") <= 12
    assert moved(before, after, "slipstream:http_responses_total", status="400") == 1


def test_gauges_show_what_is_running(cluster: ServingCluster) -> None:
    with connected(cluster) as connection:
        connection.sendall(post(prompt=prompt_of(1000, variant=602), max_tokens=3000))
        wait_for_phase(cluster, "decode")
        with frozen(*cluster.member("decode-0").pids):
            scrape, status = Scrape.of(cluster), status_of(cluster)
    assert scrape.value("vllm:num_requests_running") == 1
    assert scrape.value("vllm:num_requests_waiting") == 0
    assert scrape.value("slipstream:requests", phase="decode") == 1
    assert scrape.value("slipstream:worker_credits", worker="decode-0", kind="slots") == 63
    assert scrape.value("slipstream:http_connections") >= 1
    assert status["num_running"] == 1
    wait_until_at_rest(cluster)
    assert Scrape.of(cluster).value("vllm:kv_cache_usage_perc") == 0


def test_the_way_of_a_request_can_be_asked_for_by_the_id_of_its_response(
    cluster: ServingCluster, client: openai.OpenAI
) -> None:
    response = client.completions.with_raw_response.create(
        model=MODEL,
        prompt=prompt_of(90, variant=603),
        max_tokens=5,
        extra_body={"cache_salt": "explain"},
        extra_headers={"X-Request-Id": "my-own-id"},
        **GREEDY,
    )
    assert response.headers["x-request-id"] == "my-own-id"
    status, body = cluster.get(f"/v1/requests/{quote(response.parse().id)}/explain")
    assert status == 200
    explained = json.loads(body)
    assert explained["why"].startswith("remote on prefill-0 -> decode-0: long_prompt")
    assert explained["num_prompt_tokens"] == 90
    assert explained["finish"]["reason"] == "length"
    assert [decision["reason"] for decision in explained["decisions"]] == ["long_prompt"]
    phases = [event["phase"] for event in explained["events"]]
    assert phases[:4] == ["queued", "placed", "reserved", "prefill"]
    assert phases[-2:] == ["decode", "finished"]
