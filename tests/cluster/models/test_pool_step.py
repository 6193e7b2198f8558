"""What is to be done next for a language model that a repository names."""

from __future__ import annotations

import pytest

from slipstream.cluster.models.pool_step import PoolStep, ServedPools, asked_as, next_step
from slipstream.router.status.wanted_models import WantedModel

CHAT = WantedModel("chat", "/m/1", {"engine": {"max_model_len": 512}})
NEWER = WantedModel("chat", "/m/2")
OURS, OPERATORS = ServedPools(asked_as(CHAT)), ServedPools("")


@pytest.mark.parametrize(
    ("wanted", "pools", "step"),
    [
        (CHAT, None, PoolStep.ADD),
        (CHAT, OURS, PoolStep.AWAIT),
        (NEWER, OURS, PoolStep.EXCHANGE),
        (CHAT, OPERATORS, PoolStep.AWAIT),
        (NEWER, OPERATORS, PoolStep.AWAIT),
        (None, OURS, PoolStep.REMOVE),
        (None, OPERATORS, PoolStep.NOTHING),
        (None, None, PoolStep.NOTHING),
        (CHAT, ServedPools(asked_as(CHAT), is_leaving=True), PoolStep.AWAIT_END),
        (None, ServedPools("", is_leaving=True), PoolStep.AWAIT_END),
    ],
)
def test_pools_come_to_what_is_wanted(wanted: WantedModel | None, pools: ServedPools | None, step: PoolStep) -> None:
    assert next_step(wanted, pools, is_complete=True) is step


def test_a_router_that_has_not_tried_all_its_models_loses_no_pools() -> None:
    assert next_step(None, OURS, is_complete=False) is PoolStep.NOTHING


def test_what_is_asked_is_the_same_text_in_any_order_of_keys() -> None:
    one = WantedModel("m", "/m", {"engine": {"a": 1, "b": 2}, "decode": {}})
    other = WantedModel("m", "/m", {"decode": {}, "engine": {"b": 2, "a": 1}})
    assert asked_as(one) == asked_as(other)
