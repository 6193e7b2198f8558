"""The real dispatcher among simulated workers in virtual time, with everything going wrong at random.

Workers die, come back, are drained, lose pages on the way, forget to answer, repeat themselves; connections keep
their own order but not each other's; clients leave at any moment. Whatever happens:

- every request ends exactly once, and its tokens are a prefix of (undisturbed: exactly) the right sequence
- no worker ever gets work that it has no room for, or a message about an attempt that it does not know
- afterwards nothing is left, in the dispatcher or on a worker
"""

import pytest

from tests.support.router.faulty_world import World


@pytest.mark.parametrize("block", range(4))
def test_every_request_ends_once_with_its_tokens_whatever_fails(block):
    seen: set[str] = set()
    for seed in range(block * 30, block * 30 + 30):
        world = World(seed, num_requests=30)
        try:
            world.run()
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {world.now:.3f} s: {error}") from error
        totals = world.dispatcher.snapshot(world.now).totals
        seen |= {*totals.placements, *totals.retries, *totals.finishes}
    # The faults did happen: a simulation in which all goes well proves little.
    assert {"long_prompt", "short_prompt", "cached_prefix", "no_prefill_group", "prefill_failed"} <= seen
    assert {"worker_lost", "worker_failed", "reserve_timeout", "stop", "length", "abort"} <= seen


def test_the_same_seed_gives_the_same_history():
    def history(seed: int) -> list[str]:
        world = World(seed, num_requests=20)
        world.run()
        records = [world.dispatcher.history.get(request_id) for request_id in world.requests]
        return [line for record in records if record is not None for line in record.lines()]

    assert history(5) == history(5)
    assert history(5) != history(6)
