"""Two prefill and two decode workers: conversations find their own KV, and the router knows what each cache holds."""

from __future__ import annotations

import os
import signal

import openai
import pytest

from tests.e2e.conftest import MakeCluster
from tests.support.e2e.observation import Scrape, moved, wait_until_at_rest, wait_until_clear, workers_of
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import GREEDY, MODEL, BackgroundStream, client_of, prompt_of, streaming

PAGE_TOKENS = 16
# Few pages, so that they are evicted again and again.
SETTINGS = {
    "engine": {"dtype": "float32", "device": "cpu", "num_pages": 64, "num_threads": 1},
    "prefill": {"replicas": 2},
    "decode": {"replicas": 2},
    # The default policy may find another worker faster; this one only looks at pages.
    "router": {"dispatch": {"policy": "kv", "local_prefill_max_tokens": 32}},
}


def ask(client: openai.OpenAI, prompt: list[int], max_tokens: int, salt: str) -> int:
    """How many tokens of the prompt were cached."""
    answer = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, extra_body={"cache_salt": salt}, **GREEDY
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def strays(serving: ServingCluster) -> list[str]:
    """Workers of which the router does not know exactly as many pages as, at rest, their ledgers call cached."""
    found = []
    for worker in (*workers_of(serving, "prefill"), *workers_of(serving, "decode")):
        num_cached = dict(worker["stats"]["pages"])["cached"] if worker["stats"] else -1
        if worker["num_known_blocks"] != num_cached:
            found.append(f"{worker['peer']['name']}: {worker['num_known_blocks']} known of {num_cached} pages")
    return found


def load(serving: ServingCluster, first: int) -> list[BackgroundStream]:
    """Half of the prompts begin like others."""
    return [
        BackgroundStream(
            serving, [*prompt_of(16 * (number % 4 + 1), variant=number % 3), *prompt_of(90, first + number)], 40
        )
        for number in range(16)
    ]


@pytest.mark.timeout(400)
def test_conversations_find_their_kv_and_the_index_is_what_the_caches_hold(make_cluster: MakeCluster) -> None:
    with make_cluster(SETTINGS) as serving, client_of(serving) as client:
        before = Scrape.of(serving)
        cached = []
        prompt = prompt_of(60, variant=5)
        for turn in range(5):
            ask(client, prompt_of(120, variant=60 + turn), 8, "somebody else")
            cached.append(ask(client, prompt, 8, "conversation"))
            prompt = [*prompt, *prompt_of(60, variant=40 + turn)]
        assert cached[0] == 0
        for turn in range(1, 5):
            assert cached[turn] >= 60 * turn // PAGE_TOKENS * PAGE_TOKENS - PAGE_TOKENS, cached
        assert ask(client, prompt[:60], 8, "another salt") == 0
        after = Scrape.of(serving)
        tokens = {
            kind: moved(before, after, "slipstream:prefix_index_tokens_total", kind=kind)
            for kind in ("predicted", "found", "confirmed")
        }
        assert tokens["found"] >= sum(cached)
        assert tokens["confirmed"] >= 0.9 * tokens["found"], tokens

        streams = load(serving, 100)
        with streaming(streams):
            for stream in streams:
                stream.join()
        assert [stream.error for stream in streams] == [None] * len(streams)
        wait_until_at_rest(serving)
        wait_until_clear(serving, lambda: strays(serving), 60.0)
        assert Scrape.of(serving).value("slipstream:prefix_index_changes_total", kind="removed") > 0

        streams = load(serving, 200)
        with streaming(streams):
            os.kill(serving.member("decode-1").pids[0], signal.SIGKILL)
            for stream in streams:
                stream.join()
        assert [stream.error for stream in streams] == [None] * len(streams)
        wait_until_at_rest(serving)
        assert ask(client, prompt_of(60, variant=5), 8, "after") == 0
        wait_until_at_rest(serving)
        wait_until_clear(serving, lambda: strays(serving), 60.0)
        scrape = Scrape.of(serving)
        assert scrape.value("slipstream:prefix_index_gaps_total") == 0
        assert scrape.value("slipstream:prefix_index_entries", kind="held") > 0
