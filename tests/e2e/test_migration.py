"""A decode worker drains while streams run on it: they go on elsewhere, and their clients cannot tell."""

from __future__ import annotations

import json
from typing import Any

from tests.support.e2e.fleet_calls import decode_workers, drain, num_requests_on, scale, wait_for_fleet, wait_until_gone
from tests.support.e2e.freezing import frozen
from tests.support.e2e.observation import Scrape, moved, status_of, wait_until_at_rest
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import BackgroundStream, prompt_of, streaming

# Seconds, so that the drain comes while they run: it takes a few hundredths of one.
NUM_TOKENS = 1500
PROMPTS = [prompt_of(length, variant) for variant, length in enumerate((20, 120, 250, 400))]


def streams_of(serving: ServingCluster, salt: str) -> list[BackgroundStream]:
    return [BackgroundStream(serving, prompt, NUM_TOKENS, salt) for prompt in PROMPTS]


def test_streams_of_a_draining_worker_go_on_elsewhere_with_the_same_text(fleet: ServingCluster) -> None:
    wait_for_fleet(fleet, 1, 2)
    alone = streams_of(fleet, "alone")
    with streaming(alone):
        expected = [stream.join() for stream in alone]
    wait_until_at_rest(fleet)
    before, retries = Scrape.of(fleet), status_of(fleet)["totals"]["retries"]
    streams = streams_of(fleet, "moving")
    with streaming(streams):
        for stream in streams:
            stream.wait_for_pieces(5)
        with frozen(*(pid for worker in decode_workers(fleet) for pid in fleet.pids(worker))):  # no answer ends here
            # On a busy machine one of the two may have looked slower, and got none.
            staying, leaving = sorted(decode_workers(fleet), key=lambda worker: num_requests_on(fleet, worker))
            num_there = num_requests_on(fleet, leaving)
            assert num_there > 0
            drain(fleet, leaving)
        wait_until_gone(fleet, leaving)
        assert [stream.join() for stream in streams] == expected
    assert [(stream.error, stream.finishes) for stream in streams] == [(None, ["length"])] * len(streams)
    after = Scrape.of(fleet)
    num_moved = moved(before, after, "slipstream:migrations_total", result="moved")
    assert 0 < num_moved <= num_there  # on a busy machine one may end where it is
    assert moved(before, after, "slipstream:migration_pause_seconds_count") == num_moved
    assert status_of(fleet)["totals"]["retries"] == retries
    assert [one["decode"] for one in moved_from(fleet, leaving, len(streams))] == [staying] * int(num_moved)
    scale(fleet, "decode", 2)
    wait_for_fleet(fleet, 1, 2)
    wait_until_at_rest(fleet)


def moved_from(serving: ServingCluster, worker: str, among: int) -> list[dict[str, Any]]:
    """The stories of those that have moved away from a worker, among so many of the last requests."""
    listed = json.loads(serving.get(f"/v1/requests?limit={among}")[1])["data"]
    stories = [json.loads(serving.get(f"/v1/requests/{one['request_id']}/explain")[1]) for one in listed]
    return [s for s in stories if any(e["detail"].startswith(f"moved from {worker}") for e in s["events"])]
