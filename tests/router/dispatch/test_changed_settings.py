"""Other settings for a dispatcher that runs."""

from dataclasses import replace

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, SloConfig
from slipstream.router.protocol.generation import QueueFullError
from tests.router.dispatch.test_versions import Lab


def test_limits_and_policy_hold_from_now_on():
    config = DispatchConfig(policy="least_loaded", max_queued_requests=2)
    lab = Lab(config)
    for number in range(2):
        lab.submit(f"early-{number}")
    with pytest.raises(QueueFullError):
        lab.submit("one-too-many")
    lab.do(lab.dispatcher.follow(replace(config, policy="kv", max_queued_requests=3), lab.now))
    lab.submit("late")
    lab.join(PeerId("d", 1), "1")
    assert [request_id for _, request_id in lab.where()] == ["early-0", "early-1", "late"]
    assert {lab.dispatcher.history.get("late").decisions[0].policy} == {"kv"}


def test_a_changed_level_orders_who_comes_from_now_on():
    config = DispatchConfig(slo=SloConfig(ttft_ms=50_000))
    lab = Lab(config)
    lab.submit("early")
    lab.do(lab.dispatcher.follow(replace(config, slo=SloConfig(ttft_ms=10)), lab.now))
    lab.submit("late")
    lab.join(PeerId("d", 1), "1")
    assert [request_id for _, request_id in lab.where()] == ["late", "early"]
    assert lab.dispatcher.signals(lab.now).slo_ttft_s == 0.01
