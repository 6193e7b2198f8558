"""Models share nothing but the history: what one of them does changes no decision about another, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.protocol.generation import QueueFullError
from slipstream.router.requests.history import History, Timeline
from slipstream.workers.mock.mock_profile import MockProfile
from tests.support.router.mock_cluster import MockCluster

NUM_REQUESTS = 60
PER_S = 40.0
PROFILE = MockProfile(max_slots=2, num_pages=64, step_s=0.005, prefill_token_s=1e-4, transfer_s=0.001)
OTHER_PROFILE = MockProfile(page_tokens=64, max_slots=1, num_pages=32, step_s=0.01)


def arrivals(seed: int, count: int, per_s: float) -> list[tuple[float, list[int], int]]:
    """When each request comes, its prompt and how many tokens it wants."""
    draw, now_s, found = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(per_s)
        start = draw.choice(([1] * 48, [2] * 32, [3]))  # some share a prefix
        found.append((now_s, [*start, *draw.choices(range(1000), k=draw.randint(1, 60))], draw.randint(1, 20)))
    return found


def decisions(history: History, names: Sequence[str]) -> list[tuple[Timeline, list[str]]]:
    """Each step of these requests: when it was taken, where, and why."""
    records = [record for name in names if (record := history.get(name)) is not None]
    return [(record.timeline, record.lines()) for record in records]


def played(flood: Sequence[tuple[float, list[int], int]]) -> tuple[list[tuple[Timeline, list[str]]], int]:
    """What was decided about the quiet model's requests, and how many of the flood were refused."""
    history = History(10_000)
    quiet = MockCluster(DispatchConfig(), profile=PROFILE, history=history)
    loud = MockCluster(
        DispatchConfig(max_queued_requests=64), num_prefill=0, num_decode=1, profile=OTHER_PROFILE, history=history
    )
    steps = [(due_s, quiet, f"quiet-{n}", *rest) for n, (due_s, *rest) in enumerate(arrivals(1, NUM_REQUESTS, PER_S))]
    steps += [(due_s, loud, f"loud-{n}", *rest) for n, (due_s, *rest) in enumerate(flood)]
    num_refused = 0
    for due_s, cluster, name, prompt, num_output in sorted(steps, key=lambda step: step[0]):
        for each in (quiet, loud):
            each.run(due_s)
            each.now_s = due_s
        try:
            cluster.submit(name, prompt, num_output)
        except QueueFullError:
            num_refused += 1
    quiet.run()
    names = [name for _, cluster, name, *_ in steps if cluster is quiet]
    return decisions(history, names), num_refused


def test_a_tenfold_flood_of_another_model_changes_no_decision() -> None:
    alone, _ = played([])
    beside, num_refused = played(arrivals(2, 10 * NUM_REQUESTS, 10 * PER_S))
    assert len(alone) == NUM_REQUESTS
    assert sum(times.placed != times.queued for times, _ in alone) > NUM_REQUESTS // 4  # they wait for each other
    assert num_refused > NUM_REQUESTS
    assert beside == alone
