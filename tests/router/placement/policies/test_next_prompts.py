"""What prompts to come lose because of one, against counting them one by one."""

import pytest

from slipstream.router.placement.policies.estimate import estimate_decode, estimate_prefill
from slipstream.router.placement.policies.next_prompts import NextPrompts
from tests.support.router.placed_workers import job, measured, run_streams, worker

LEVEL_S, MISS_S = 0.5, 5.5


def estimate(queue_s, own_s, next_per_s=1.0, next_s=0.1, name="p"):
    there = measured(worker("prefill", name))
    found = estimate_prefill(there, job(100), 0, 0.0)
    return found._replace(queue_s=queue_s, own_s=own_s, next_per_s=next_per_s, next_s=next_s)


def counted(queue_s, own_s, num_a_second=401, num_times_left=307):
    """One that comes t seconds later finds queue_s - t seconds of work, or with this prompt own_s more."""
    lost_s = 0.0
    for at in range(round((queue_s + own_s) * num_a_second)):
        came_s = (at + 0.5) / num_a_second
        without, with_it = max(queue_s - came_s, 0.0), queue_s + own_s - came_s
        late = 0
        for slot in range(num_times_left):
            left_s = LEVEL_S * (slot + 0.5) / num_times_left
            late += (with_it > left_s) - (without > left_s)
        lost_s += with_it - without + late / num_times_left * MISS_S
    return lost_s / num_a_second


@pytest.mark.parametrize("queue_s", [0.0, 0.2, 0.7, 3.0])
@pytest.mark.parametrize("own_s", [0.05, 0.3, 0.6, 4.0])
def test_the_loss_is_what_counting_each_of_them_gives(queue_s, own_s):
    loss_s = NextPrompts(LEVEL_S, MISS_S).loss_s(estimate(queue_s, own_s))
    assert loss_s == pytest.approx(counted(queue_s, own_s), rel=0.02, abs=1e-3)


def test_nobody_is_lost_where_nobody_comes_or_nothing_takes_time():
    assert NextPrompts(LEVEL_S, MISS_S).loss_s(estimate(1.0, 1.0, next_per_s=0.0)) == 0.0
    assert NextPrompts(LEVEL_S, MISS_S).loss_s(estimate(0.0, 0.0)) == 0.0


def decode(streams, name="d"):
    there = measured(worker("decode", name))
    run_streams(there, streams)
    return there


def test_a_prompt_loses_no_more_than_by_going_to_a_decode_worker():
    found = NextPrompts(LEVEL_S, MISS_S)
    busy = decode(4)
    beside = estimate_prefill(busy, job(100), 0, 0.0, estimate_decode(busy, job(100), 0.0))
    found.could_go_to(beside._replace(queue_s=0.0), 4)
    assert found.loss_s(estimate(0.0, 20.0, next_per_s=0.5)) == pytest.approx(0.5 * 20.0 * 4 * 0.1)
    found.could_go_to(estimate(0.25, 0.0, name="other"), 0)
    assert found.loss_s(estimate(0.0, 20.0, next_per_s=0.5)) == pytest.approx(0.5 * 20.0 * 4 * 0.1)


def test_a_decode_worker_is_no_way_out_of_its_own_queue():
    found = NextPrompts(LEVEL_S, MISS_S)
    there = decode(2)
    beside = estimate_prefill(there, job(100), 0, 0.0, estimate_decode(there, job(100), 0.0))
    beside = beside._replace(queue_s=0.0, own_s=2.0, next_per_s=1.0, next_s=0.1)
    found.could_go_to(beside, 2)
    assert found.loss_s(beside) == pytest.approx(counted(0.0, 2.0), rel=0.02)
