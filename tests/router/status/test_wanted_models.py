"""What a repository wants of the cluster: the latest want of a name counts, and each is dropped once."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.router.status.wanted_models import WantedList, WantedModel, WantedModels

CHAT, NEWER = WantedModel("chat", "/m/1"), WantedModel("chat", "/m/2")


class Failures(list[tuple[str, str]]):
    def note(self, model: WantedModel, reason: str) -> None:
        self.append((model.path, reason))


@pytest.fixture
def failures() -> Failures:
    return Failures()


@pytest.fixture
def wanted(failures: Failures) -> WantedModels:
    return WantedModels(failures.note)


def paths(wanted: WantedModels) -> list[str]:
    return [want.model.path for want in wanted.current.wants]


def test_while_a_version_follows_another_the_latest_counts(wanted: WantedModels) -> None:
    before, newer = wanted.want(CHAT), wanted.want(NEWER)
    assert paths(wanted) == ["/m/2"]
    wanted.drop(before)
    assert paths(wanted) == ["/m/2"]
    wanted.drop(newer)
    assert (paths(wanted), wanted.num_wants) == ([], 0)


def test_two_that_want_the_same_model_let_it_go_one_after_the_other(wanted: WantedModels) -> None:
    one = wanted.want(CHAT)
    first = wanted.current
    other = wanted.want(WantedModel("chat", "/m/1"))
    assert wanted.current != first  # the cluster is to look again
    wanted.drop(one)
    wanted.drop(one)
    assert paths(wanted) == ["/m/1"]
    wanted.drop(other)
    assert paths(wanted) == []


def test_a_model_that_failed_leaves_the_name_to_the_one_before(wanted: WantedModels, failures: Failures) -> None:
    wanted.want(CHAT)
    wanted.want(NEWER)
    wanted.fail(NEWER, "no memory")
    wanted.fail(NEWER, "said twice")
    assert (paths(wanted), failures) == (["/m/1"], [("/m/2", "no memory")])


def test_a_change_wakes_those_that_wait_for_one(wanted: WantedModels) -> None:
    async def play() -> None:
        assert await wanted.other_than(None) == WantedList()
        waiting = asyncio.ensure_future(wanted.other_than(WantedList()))
        await asyncio.sleep(0)
        assert not waiting.done()
        wanted.want(CHAT)
        assert [want.model for want in (await waiting).wants] == [CHAT]
        waiting = asyncio.ensure_future(wanted.other_than(wanted.current))
        wanted.complete()
        assert (await waiting).is_complete

    asyncio.run(play())


def test_a_model_that_is_wanted_again_after_it_failed_is_another_want(wanted: WantedModels) -> None:
    failed = wanted.want(CHAT)
    known = wanted.current
    wanted.fail(CHAT, "no memory")
    again = wanted.want(CHAT)
    assert wanted.current != known
    wanted.drop(failed)  # the version that had it ends, and takes nothing from the one that has it now
    assert paths(wanted) == ["/m/1"]
    wanted.drop(again)
    assert wanted.num_wants == 0
