"""`kill -9` of any process in mid-stream: clients notice a pause, the cluster heals, nothing is left reserved."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache

import pytest

from tests.support.e2e.freezing import frozen
from tests.support.e2e.observation import Scrape, moved, unrest, wait_for_phase, wait_until_at_rest, wait_until_clear
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import BackgroundStream, client_of, complete, prompt_of, streaming

# Prompt tokens and output tokens of requests that decode when the kill comes, and of those that are in prefill then.
DECODING = ((20, 500), (25, 500), (120, 450), (150, 450))
IN_PREFILL = ((2500, 20), (2400, 20))
GOOD = prompt_of(60, variant=78)
DECODING_PROMPT = prompt_of(40, variant=79)


def kill(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, how)


def pieces_of(serving: ServingCluster, salt: str, sizes: tuple[tuple[int, int], ...]) -> list[BackgroundStream]:
    return [
        BackgroundStream(serving, prompt_of(num_prompt_tokens, variant=30 + number), num_output_tokens, salt)
        for number, (num_prompt_tokens, num_output_tokens) in enumerate(sizes)
    ]


@cache
def undisturbed(serving: ServingCluster) -> list[str]:
    """What the cluster says to all of them while no process dies."""
    streams = pieces_of(serving, "undisturbed", DECODING + IN_PREFILL)
    with streaming(streams):
        texts = [stream.join() for stream in streams]
    check_ended_well(streams)
    return texts


def check_ended_well(streams: list[BackgroundStream]) -> None:
    """No error event, and exactly one finish."""
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [stream.finishes for stream in streams] == [["length"]] * len(streams)


def check_survival(serving: ServingCluster, member: str, pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Kills a process while streams decode and others are in remote prefill."""
    before, old = Scrape.of(serving), serving.member(member)
    with client_of(serving) as client:
        expected = undisturbed(serving)
        decoding = pieces_of(serving, f"{member} {pid}", DECODING)
        late = pieces_of(serving, f"{member} {pid}", DECODING + IN_PREFILL)[len(DECODING) :]
        with streaming(decoding):
            for stream in decoding:
                stream.wait_for_pieces(5)
            with ExitStack() as until_their_end:
                with frozen(*serving.member("prefill-0").pids):  # none of them is through with it before the kill
                    until_their_end.enter_context(streaming(late))
                    wait_for_phase(serving, "prefill")
                    kill(pid, how)
                texts = [stream.join() for stream in (*decoding, *late)]
        check_ended_well([*decoding, *late])
        assert texts == expected
        serving.wait_until_restarted(member, old.pids)
        wait_until_at_rest(serving)
        assert complete(client, GOOD, 4)
    assert serving.member(member).restarts == old.restarts + 1
    assert moved(before, Scrape.of(serving), "slipstream:retries_total") > 0


@pytest.mark.parametrize(("member", "how"), [("prefill-0", signal.SIGKILL), ("decode-0", signal.SIGTERM)])
def test_streams_survive_a_killed_worker(cluster: ServingCluster, member: str, how: signal.Signals) -> None:
    wait_until_at_rest(cluster)
    check_survival(cluster, member, cluster.member(member).pids[0], how)


@pytest.mark.parametrize(("member", "rank"), [("prefill-0", 1), ("decode-0", 0)])
def test_streams_survive_a_killed_rank_where_pages_go_over_torch_distributed(
    tp2_cluster: ServingCluster, member: str, rank: int
) -> None:
    """The one that is killed in the prefill group is no leader, but a follower."""
    wait_until_at_rest(tp2_cluster)
    assert len(tp2_cluster.member("prefill-0").pids) == 2
    check_survival(tp2_cluster, member, tp2_cluster.member(member).pids[rank])


def test_streams_survive_the_death_of_all_workers_at_once(cluster: ServingCluster) -> None:
    wait_until_at_rest(cluster)
    expected = undisturbed(cluster)[: len(DECODING)]
    streams = pieces_of(cluster, "all", DECODING)
    workers = {member: cluster.member(member).pids for member in ("prefill-0", "decode-0")}
    with streaming(streams):
        for stream in streams:
            stream.wait_for_pieces(5)
        for pids in workers.values():
            kill(pids[0])
        texts = [stream.join() for stream in streams]
    check_ended_well(streams)
    assert texts == expected
    for member, pids in workers.items():
        cluster.wait_until_restarted(member, pids)
    wait_until_at_rest(cluster)


def check_that_clients_wait_for_what_comes_next(cluster: ServingCluster, name: str, pid: int) -> None:
    """Kills what clients are connected through. Streams, a whole answer and who comes meanwhile get theirs."""
    expected = undisturbed(cluster)
    with client_of(cluster) as client, ThreadPoolExecutor(2) as threads:
        text = complete(client, GOOD, 12)
        streams = pieces_of(cluster, name, DECODING + IN_PREFILL)
        with streaming(streams):
            for stream in streams[: len(DECODING)]:
                stream.wait_for_pieces(5)
            whole = threads.submit(complete, client, DECODING_PROMPT, 300)
            kill(pid)
            late = threads.submit(complete, client, GOOD, 12)  # there is no worker now that could answer
            texts = [stream.join() for stream in streams]
        check_ended_well(streams)
        assert texts == expected
        assert late.result() == text
        assert whole.result() == complete(client, DECODING_PROMPT, 300)


def test_streams_survive_a_killed_router_and_its_workers_live_on(cluster: ServingCluster) -> None:
    wait_until_at_rest(cluster)
    url, router = cluster.base_url, cluster.member("router")
    workers = {name: cluster.member(name).pids for name in ("prefill-0", "decode-0")}
    check_that_clients_wait_for_what_comes_next(cluster, "router", router.pids[0])
    cluster.wait_until_restarted("router", router.pids)
    wait_until_at_rest(cluster)
    assert cluster.base_url == url
    assert {name: cluster.member(name).pids for name in workers} == workers


def test_streams_survive_a_killed_driver_and_the_end_of_all_other_processes_with_it(cluster: ServingCluster) -> None:
    wait_until_at_rest(cluster)
    before = cluster.state
    assert before is not None
    check_that_clients_wait_for_what_comes_next(cluster, "driver", before.driver)
    cluster.wait_until_served_by_another(before.driver)
    wait_until_at_rest(cluster)
    after = cluster.state
    assert after is not None
    assert (after.pid, after.url, after.operator_url) == (before.pid, before.url, before.operator_url)


def test_the_cluster_says_that_it_is_not_ready_while_it_has_no_decode_worker(cluster: ServingCluster) -> None:
    wait_until_at_rest(cluster)
    state = cluster.state
    assert state is not None

    def still_ready() -> list[str]:
        return ["ready"] if cluster.get("/health/ready")[0] == 200 else []

    with frozen(state.driver):  # it starts no other worker meanwhile
        kill(cluster.member("decode-0").pids[0])
        wait_until_clear(cluster, still_ready, 30)
        assert cluster.get("/health/live")[0] == 200
        assert any("not ready" in what for what in unrest(cluster))
    wait_until_at_rest(cluster)
    assert cluster.get("/health/ready")[0] == 200
