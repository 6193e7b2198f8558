"""The time for a start does not count while a model is downloaded."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.state.cluster_state import MemberStatus
from slipstream.cluster.supervisor import start_bound as module
from slipstream.cluster.supervisor.start_bound import start_bound


def member(state: MemberState) -> MemberStatus:
    return MemberStatus("decode-0", "decode", state)


async def start(seconds: float, members: list[MemberStatus], *, fetches_s: float) -> None:
    """A start that goes on for ever after `fetches_s`, in which its member may be fetching."""
    async with start_bound(seconds, lambda: members):
        await asyncio.sleep(fetches_s)
        members[0] = member("loading")
        await asyncio.sleep(30)


def test_a_start_that_takes_too_long_times_out() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(start(0.02, [member("loading")], fetches_s=0.0))


def test_a_download_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    members = [member("fetching")]
    with pytest.raises(TimeoutError):
        asyncio.run(start(0.1, members, fetches_s=0.3))
    assert members == [member("loading")]


def test_loading_the_models_of_a_repository_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)

    async def start_and_load() -> None:
        loaded = asyncio.Event()
        async with start_bound(0.1, list, lambda: not loaded.is_set()):
            await asyncio.sleep(0.3)
            loaded.set()

    asyncio.run(start_and_load())
