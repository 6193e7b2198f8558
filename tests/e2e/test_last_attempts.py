"""Workers that freeze or die once too often, in a cluster with short leases and two attempts a request."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import openai
import pytest

from tests.e2e.conftest import SMALL
from tests.support.e2e.freezing import frozen
from tests.support.e2e.observation import (
    Scrape,
    moved,
    wait_for_phase,
    wait_until_at_rest,
    wait_until_clear,
    workers_of,
)
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import BackgroundStream, client_of, complete, prompt_of, streaming

# Torch's kernels are slow enough for a worker to be caught in the middle of a request.
SETTINGS = {
    **SMALL,
    "name": "e2e-short-leases",
    "engine": {**SMALL["engine"], "cpu_kernels": "off"},
    "decode": {"replicas": 2},
    "router": {
        "dispatch": {
            "policy": "least_loaded",  # two requests on two workers
            "local_prefill_max_tokens": 32,
            "worker_lease_s": 5.0,
            "max_attempts": 2,
            "migration": {"rebalance": False},  # requests move when their worker dies, and only then
        }
    },
}
GOOD = prompt_of(60, variant=79)
NUM_TOKENS = 600  # of a stream that is to be caught: seconds, with these kernels


@pytest.fixture(scope="module")
def short_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCluster]:
    with ServingCluster(tmp_path_factory.mktemp("leases"), SETTINGS) as serving:
        yield serving


@dataclass(frozen=True)
class DecodeWorker:
    name: str
    pid: int
    num_requests: int


def decode_workers(serving: ServingCluster) -> list[DecodeWorker]:
    """Those that are connected."""
    return [DecodeWorker(w["peer"]["name"], w["pid"], w["num_requests"]) for w in workers_of(serving, "decode")]


def busy_decode_worker(serving: ServingCluster) -> DecodeWorker:
    """The only one that has requests."""
    (busy,) = [worker for worker in decode_workers(serving) if worker.num_requests]
    return busy


def wait_for_requests(serving: ServingCluster, counts: list[int]) -> None:
    """Returns when the busy decode workers have so many requests."""

    def otherwise() -> list[str]:
        workers = decode_workers(serving)
        return [] if sorted(w.num_requests for w in workers if w.num_requests) == counts else [str(workers)]

    wait_until_clear(serving, otherwise, 60, pause_s=0.01)


def test_a_request_moves_on_from_a_frozen_decode_worker_which_comes_back_when_it_thaws(
    short_leases: ServingCluster,
) -> None:
    wait_until_at_rest(short_leases)
    pids = [short_leases.member(name).pids for name in ("decode-0", "decode-1")]
    with client_of(short_leases) as client:
        expected = complete(client, prompt_of(120, variant=50), NUM_TOKENS)
        stream = BackgroundStream(short_leases, prompt_of(120, variant=50), NUM_TOKENS, salt="frozen decode")
        with streaming([stream]):
            stream.wait_for_pieces(5)
            with frozen(busy_decode_worker(short_leases).pid):
                text = stream.join()
                assert complete(client, GOOD, 4)
    assert (text, stream.error, stream.finishes) == (expected, None, ["length"])
    wait_until_at_rest(short_leases)
    assert [short_leases.member(name).pids for name in ("decode-0", "decode-1")] == pids


def test_a_request_moves_on_from_a_frozen_prefill_worker_which_comes_back_when_it_thaws(
    short_leases: ServingCluster,
) -> None:
    wait_until_at_rest(short_leases)
    before = Scrape.of(short_leases)
    prompt = prompt_of(2500, variant=51)
    with client_of(short_leases) as client:
        expected = complete(client, prompt, 20)
        stream = BackgroundStream(short_leases, prompt, 20, salt="frozen prefill")
        with frozen(*short_leases.member("prefill-0").pids), streaming([stream]):
            text = stream.join()
    assert (text, stream.error, stream.finishes) == (expected, None, ["length"])
    wait_until_at_rest(short_leases)
    assert moved(before, Scrape.of(short_leases), "slipstream:retries_total", cause="worker_lost") == 1


def test_past_the_last_attempt_a_stream_ends_with_an_error_event_and_a_whole_answer_with_a_5xx(
    short_leases: ServingCluster,
) -> None:
    """Each request loses two workers: the stream its own and the one that it moved to; the other request that one and
    the next, for which it has to wait."""
    wait_until_at_rest(short_leases)
    before = Scrape.of(short_leases)
    with client_of(short_leases) as client, ThreadPoolExecutor(1) as pool:
        stream = BackgroundStream(short_leases, prompt_of(20, variant=52), 3500)
        with streaming([stream]):
            stream.wait_for_pieces(2)
            first = busy_decode_worker(short_leases)
            whole = pool.submit(complete, client, prompt_of(20, variant=53), 3500)
            wait_for_requests(short_leases, [1, 1])
            os.kill(first.pid, signal.SIGKILL)
            wait_for_requests(short_leases, [2])
            os.kill(busy_decode_worker(short_leases).pid, signal.SIGKILL)
            stream.join()
            wait_for_phase(short_leases, "decode")
            os.kill(busy_decode_worker(short_leases).pid, signal.SIGKILL)
        with pytest.raises(openai.InternalServerError) as failure:
            whole.result(60)
        assert failure.value.status_code == 500
        assert failure.value.code == "worker_failed"
        assert "attempt 2 of 2" in str(failure.value).lower()
        assert stream.error is not None
        assert stream.error.code == "worker_failed"
        assert stream.finishes == []
        wait_until_at_rest(short_leases)
        assert complete(client, GOOD, 4)
    after = Scrape.of(short_leases)
    assert moved(before, after, "slipstream:finishes_total", outcome="worker_failed") == 2
    assert moved(before, after, "vllm:request_success_total", finished_reason="error") == 2
