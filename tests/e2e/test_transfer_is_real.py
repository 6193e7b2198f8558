"""KV pages really travel from the prefill group to the decode worker, and damaged ones are never decoded from."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import MakeCluster
from tests.support.e2e.observation import Scrape, moved, wait_until_at_rest
from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import BackgroundStream, client_of, complete, prompt_of, streaming

PAGE_TOKENS = 16
PAGE_BYTES = 5 * 4 * 2 * PAGE_TOKENS * 32 * 4  # layers, KV heads, K and V, tokens, head dimension, float32
CORRUPT_EVERY = 7  # messages; a hand-off of up to 512 tokens has 5, one a layer


def pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS)


@pytest.mark.parametrize("num_tokens", [33, 47, 48, 49, 300, 1111])
def test_a_remote_prefill_moves_every_page_and_gives_the_tokens_of_transformers(
    either_cluster: ServingCluster, reference: Reference, num_tokens: int
) -> None:
    prompt = prompt_of(num_tokens, variant=num_tokens)
    before = Scrape.of(either_cluster)
    with client_of(either_cluster) as client:
        remote = complete(client, prompt, 16, salt="transfer")
    after = Scrape.of(either_cluster)
    assert moved(before, after, "slipstream:placements_total", reason="long_prompt") == 1
    assert moved(before, after, "slipstream:transfers_total") == 1
    assert moved(before, after, "slipstream:transfer_bytes_total") == pages_for(num_tokens) * PAGE_BYTES
    assert moved(before, after, "slipstream:transfer_seconds_total") > 0
    assert remote == reference.text(prompt, 16)


def test_only_the_pages_that_the_decode_worker_lacks_travel(
    either_cluster: ServingCluster, reference: Reference
) -> None:
    begin = prompt_of(200, variant=900)
    longer = begin + prompt_of(100, variant=901)
    with client_of(either_cluster) as client:
        complete(client, begin, 1, salt="lacks")
        complete(client, begin, 2, salt="lacks")
        before = Scrape.of(either_cluster)
        text = complete(client, longer, 8, salt="lacks")
    after = Scrape.of(either_cluster)
    cached_pages = len(begin) // PAGE_TOKENS
    assert moved(before, after, "slipstream:placements_total", reason="long_prompt") == 1
    assert moved(before, after, "slipstream:transfer_bytes_total") == (pages_for(300) - cached_pages) * PAGE_BYTES
    assert text == reference.text(longer, 8)


def test_a_byte_flipped_in_flight_is_caught_and_the_request_tried_again(
    make_cluster: MakeCluster, reference: Reference
) -> None:
    """Only the decode worker can try again (the one prefill group has failed), so this compares with local prefill."""
    serving = make_cluster({"kv_transfer": {"corrupt_every": CORRUPT_EVERY}})
    serving.start()
    wait_until_at_rest(serving)
    before = Scrape.of(serving)
    prompts = [prompt_of(300, variant=500 + number) for number in range(6)]
    with client_of(serving) as client:
        texts = [complete(client, prompt, 12) for prompt in prompts]
        streams = [BackgroundStream(serving, prompt, 12, salt="streamed") for prompt in prompts]
        with streaming(streams):
            streamed = [stream.join() for stream in streams]
    wait_until_at_rest(serving)
    after = Scrape.of(serving)
    assert texts == streamed == [reference.text(prompt, 12) for prompt in prompts]
    assert [stream.finishes for stream in streams] == [["length"]] * len(streams)
    assert [stream.error for stream in streams] == [None] * len(streams)
    caught = moved(before, after, "slipstream:worker_events_total", event="kv_transfer_checksum_failures")
    failed = moved(before, after, "slipstream:worker_events_total", event="kv_transfers_failed", role="decode")
    retried = moved(before, after, "slipstream:retries_total", cause="worker_failed")
    unharmed = moved(before, after, "slipstream:transfers_total")
    assert caught == failed == retried > 0
    assert moved(before, after, "slipstream:placements_total", reason="prefill_failed") == retried
    assert unharmed > 0
    assert unharmed + failed == len(texts) + len(streamed)
