"""A decode worker drains while streams run on it: they go on elsewhere, and their clients cannot tell."""

from __future__ import annotations

import json
from typing import Any

from slipstream.cluster.operator.client import client_of
from tests.e2e.conftest import SMALL, MakeCluster
from tests.e2e.observation import Scrape, moved, status_of, unrest, wait_until_clear, workers_of
from tests.e2e.serving_cluster import ServingCluster
from tests.e2e.streams import BackgroundStream, complete, prompt_of, streaming
from tests.e2e.streams import client_of as openai_of

NUM_TOKENS = 900
PROMPTS = [prompt_of(length, variant) for variant, length in enumerate((20, 120, 250, 400))]


def test_streams_of_a_draining_worker_go_on_elsewhere_with_the_same_text(make_cluster: MakeCluster) -> None:
    settings = {
        **SMALL,
        "decode": {"replicas": 2},
        "router": {"dispatch": {"policy": "round_robin", "migration": {"precopy_pages": 8}}},
    }
    serving = make_cluster(settings)
    serving.start()
    with openai_of(serving) as client:
        expected = [complete(client, prompt, NUM_TOKENS, salt="alone") for prompt in PROMPTS]
        before = Scrape.of(serving)
        streams = [BackgroundStream(client, prompt, NUM_TOKENS, salt="moving") for prompt in PROMPTS]
        with streaming(streams):
            for stream in streams:
                stream.wait_for_pieces(5)
            num_there = {worker["peer"]["name"]: worker["num_requests"] for worker in workers_of(serving, "decode")}
            assert num_there["decode-0"] > 0
            state = serving.state
            assert state is not None
            client_of(state).post("/v1/workers/decode-0/drain")
            wait_until_clear(serving, lambda: [w["peer"]["name"] for w in workers_of(serving, "decode")][1:], 60.0)
            assert not all(stream.finishes for stream in streams), "they had ended before the worker was gone"
            assert [stream.join() for stream in streams] == expected
        assert [(stream.error, stream.finishes) for stream in streams] == [(None, ["length"])] * len(streams)
        after = Scrape.of(serving)
        assert moved(before, after, "slipstream:migrations_total", result="moved") == num_there["decode-0"]
        assert moved(before, after, "slipstream:migration_pause_seconds_count") == num_there["decode-0"]
        assert status_of(serving)["totals"]["retries"] == {}
        told = explained(serving, streams=num_there["decode-0"])
        assert all(one["decode"] == "decode-1" for one in told)
    wait_until_clear(serving, lambda: [what for what in unrest(serving) if "decode-0" not in what], 60.0)


def explained(serving: ServingCluster, streams: int) -> list[dict[str, Any]]:
    """The stories of the requests that have moved."""
    told = json.loads(serving.get("/v1/requests?limit=50")[1])["data"]
    stories = [json.loads(serving.get(f"/v1/requests/{one['request_id']}/explain")[1]) for one in told]
    from_there = [s for s in stories if any(e["detail"].startswith("moved from decode-0") for e in s["events"])]
    assert len(from_there) == streams
    return from_there
