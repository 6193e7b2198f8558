"""The schedulers do what plain models of their specification do, whatever happens. (`scripts/batching_check.py` tries
more seeds.)"""

from __future__ import annotations

import pytest

from tests.support.router.batching.virtual_world import DynamicWorld, SequenceWorld

NUM_GROUPS = 10
SEEDS_EACH = 30


@pytest.mark.parametrize("group", range(NUM_GROUPS))
def test_the_dynamic_batcher_gives_the_batches_of_its_specification(group: int) -> None:
    for seed in range(group * SEEDS_EACH, (group + 1) * SEEDS_EACH):
        DynamicWorld(seed).run()


@pytest.mark.parametrize("group", range(NUM_GROUPS))
def test_the_sequence_batcher_gives_the_batches_of_its_specification(group: int) -> None:
    for seed in range(group * SEEDS_EACH, (group + 1) * SEEDS_EACH):
        SequenceWorld(seed).run()
