"""A client that leaves, at whatever moment, gives back every page and slot, and nothing waits for it."""

from __future__ import annotations

import socket

import openai
import pytest

from tests.support.e2e.freezing import frozen
from tests.support.e2e.observation import Scrape, moved, wait_for_phase, wait_until_at_rest, wait_until_clear
from tests.support.e2e.raw_connection import connected, post, read_until
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import GREEDY, MODEL, client_of, complete, prompt_of

VERY_LONG = 3500
LONGEST = 3800  # output tokens: seconds, in which every leaving client is sure to leave
GOOD = prompt_of(60, variant=77)


def wait_for_aborts(serving: ServingCluster, before: Scrape, count: int) -> None:
    def missing() -> list[str]:
        aborted = moved(before, Scrape.of(serving), "slipstream:finishes_total", outcome="abort")
        return [] if aborted == count else [f"{aborted} aborts of {count}"]

    wait_until_clear(serving, missing, 60)


def check_all_given_back(serving: ServingCluster, before: Scrape, num_aborts: int) -> None:
    """The requests have ended as aborts, the ledgers are at zero, and a good request is served."""
    wait_for_aborts(serving, before, num_aborts)
    wait_until_at_rest(serving)
    with client_of(serving) as client:
        assert complete(client, GOOD, 4)


@pytest.mark.parametrize("moment", ["at once", "in prefill"])
def test_leaving_before_the_first_token_stops_the_prefill(either_cluster: ServingCluster, moment: str) -> None:
    before = Scrape.of(either_cluster)
    # Frozen, so that no token comes before they leave.
    with frozen(*either_cluster.member("prefill-0").pids), connected(either_cluster) as connection:
        connection.sendall(post(prompt=prompt_of(VERY_LONG), max_tokens=50, cache_salt=moment))
        if moment == "in prefill":
            wait_for_phase(either_cluster, "prefill")
    check_all_given_back(either_cluster, before, 1)
    after = Scrape.of(either_cluster)
    assert moved(before, after, "slipstream:transfers_total") <= 1  # that of the good request
    computed = moved(before, after, "slipstream:worker_events_total", event="computed_tokens")
    assert computed < VERY_LONG + 2 * len(GOOD)


def test_leaving_in_mid_stream_ends_the_decoding(either_cluster: ServingCluster) -> None:
    before = Scrape.of(either_cluster)
    with connected(either_cluster) as connection:
        connection.sendall(post(prompt=prompt_of(200, variant=5), max_tokens=LONGEST))
        read_until(connection, b"data: ", times=10)
    check_all_given_back(either_cluster, before, 1)
    after = Scrape.of(either_cluster)
    assert moved(before, after, "vllm:generation_tokens_total") < LONGEST


def test_leaving_with_the_first_token_in_hand_ends_the_hand_off(cluster: ServingCluster) -> None:
    """The token is sent while pages are still under way."""
    before = Scrape.of(cluster)
    for attempt in range(3):
        with connected(cluster) as connection:
            connection.sendall(post(prompt=prompt_of(1500, variant=6 + attempt), max_tokens=2500))
            read_until(connection, b"data: ")
    check_all_given_back(cluster, before, 3)


def test_leaving_with_several_choices_ends_all_of_them(cluster: ServingCluster) -> None:
    before = Scrape.of(cluster)
    with connected(cluster) as connection:
        prompts = [prompt_of(100, variant=10), prompt_of(20, variant=11)]
        connection.sendall(post(prompt=prompts, n=4, max_tokens=1500, temperature=1))
        read_until(connection, b"data: ", times=20)
    check_all_given_back(cluster, before, 8)


def test_leaving_while_waiting_for_a_whole_answer_ends_it(cluster: ServingCluster) -> None:
    before = Scrape.of(cluster)
    with connected(cluster) as connection:
        connection.sendall(post(prompt=prompt_of(50, variant=12), max_tokens=LONGEST, stream=False))
        wait_for_phase(cluster, "decode")
    check_all_given_back(cluster, before, 1)


def test_leaving_the_queue_takes_nothing_of_the_workers(cluster: ServingCluster) -> None:
    """Two prompts fill the pages of the workers; the third waits in the router until its client leaves."""
    before = Scrape.of(cluster)
    with (
        frozen(*cluster.member("prefill-0").pids),  # so that none of them ends before
        connected(cluster) as first,
        connected(cluster) as second,
        connected(cluster) as third,
    ):
        for connection in (first, second, third):
            prompt = prompt_of(VERY_LONG, variant=20 + connection.fileno())
            connection.sendall(post(prompt=prompt, max_tokens=500, cache_salt="queue"))
        wait_for_phase(cluster, "queued")
    check_all_given_back(cluster, before, 3)


def test_closing_only_the_sending_side_counts_as_leaving(cluster: ServingCluster) -> None:
    before = Scrape.of(cluster)
    with connected(cluster) as connection:
        connection.sendall(post(prompt=GOOD, max_tokens=LONGEST))
        read_until(connection, b"data: ", times=3)
        connection.shutdown(socket.SHUT_WR)
        check_all_given_back(cluster, before, 1)


def test_closing_a_stream_of_the_openai_client_ends_it(cluster: ServingCluster, client: openai.OpenAI) -> None:
    before = Scrape.of(cluster)
    with client.completions.create(model=MODEL, prompt=GOOD, max_tokens=LONGEST, stream=True, **GREEDY) as stream:
        next(iter(stream))
    check_all_given_back(cluster, before, 1)
