"""The supervisor with scripted members: which one is started, drained, forgotten, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from slipstream.cluster.config.cluster_config import RestartConfig
from slipstream.cluster.config.model_entry import ModelEntry
from slipstream.cluster.ray.bundles import PoolResources
from slipstream.cluster.supervisor import group_monitor, router_monitor
from slipstream.cluster.supervisor import supervisor as supervisor_module
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.supervisor import StartFailed, Supervisor
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.model_files.manifest import REFUSES
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers
from tests.support.cluster.fake_members import CONFIG, MODEL, FakeGroup, FakeRouter, Watcher, serving


def wanted(num_prefill: int, num_decode: int) -> ExpectedWorkers:
    return ExpectedWorkers(num_prefill, num_decode, has_served=True)


def scenario(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@scenario
async def test_a_new_group_is_wanted_at_once_and_ready_later() -> None:
    async with serving("prefill", "decode") as it:
        await it.supervisor.add([it.group("decode-1", version="v2")])
        assert it.managed("decode-1").status.version == "v2"
        assert it.supervisor.expected[MODEL] == wanted(1, 2)
        assert it.router.expected[-1] == wanted(1, 2)
        await it.until(lambda: it.state_of("decode-1") == "ready")
        assert [member.name for member in it.watcher.members] == ["router", "prefill-0", "decode-0", "decode-1"]


@scenario
async def test_how_versions_do_is_asked_of_the_next_router_too() -> None:
    async with serving("decode") as it:
        it.router.num_unanswered = 1
        assert await it.supervisor.router.tensor_versions("encoder") is not None


@scenario
async def test_a_group_that_is_removed_is_drained_and_not_started_again() -> None:
    async with serving("decode", "prefill") as it:
        await it.supervisor.remove(it.managed("decode-0"), migrate=False)
        assert it.router.expected[-1] == wanted(1, 0)
        await it.until(lambda: it.supervisor.group("decode-0") is None)
        assert it.router.drained == [("decode-0", None, False)]
        gone = it.groups["decode-0"]
        assert gone.num_launches == 1
        assert not gone.is_reserved
        assert ("decode-0", "stopped") in it.watcher.changes


@scenario
async def test_a_group_that_dies_while_it_leaves_is_not_started_again() -> None:
    async with serving("decode") as it:
        it.groups["decode-0"].obeys = False
        await it.supervisor.remove(it.managed("decode-0"), migrate=True)
        await it.until(lambda: it.state_of("decode-0") == "draining")
        it.groups["decode-0"].die("killed")
        await it.until(lambda: it.supervisor.group("decode-0") is None)
        assert it.groups["decode-0"].num_launches == 1


@pytest.mark.parametrize("next_role", [None, "prefill"])
def test_a_group_that_says_nothing_any_more_is_ended_in_time(
    monkeypatch: pytest.MonkeyPatch, next_role: Role | None
) -> None:
    """It has frozen, or its machine has: what it is drained for has an end all the same."""
    monkeypatch.setattr(supervisor_module, "OVERDUE_S", 0.0)
    monkeypatch.setattr(group_monitor, "SERVING_S", 0.001)

    async def run() -> None:
        async with serving("decode", config=replace(CONFIG, drain_timeout_s=0.0)) as it:
            group = it.groups["decode-0"]
            group.hangs = True
            if next_role is None:
                await it.supervisor.remove(it.managed("decode-0"), migrate=True)
                await it.until(lambda: it.supervisor.group("decode-0") is None)
            else:
                await it.supervisor.switch(it.managed("decode-0"), next_role)
                await it.until(lambda: it.state_of("decode-0") == "dead")
                group.hangs = False
                await it.until(lambda: it.state_of("decode-0") == "ready")
                assert group.served_role == next_role
            assert group.num_kills == 1

    asyncio.run(run())


@pytest.mark.parametrize("thaws", [True, False])
def test_a_group_that_hangs_is_called_silent_and_started_again_if_it_stays_so(
    monkeypatch: pytest.MonkeyPatch, thaws: bool
) -> None:
    monkeypatch.setattr(group_monitor, "SERVING_S", 0.001)
    monkeypatch.setattr(group_monitor, "SILENT_S", 0.0)
    monkeypatch.setattr(group_monitor, "GIVE_UP_S", 60.0)

    async def run() -> None:
        async with serving("decode") as it:
            group = it.groups["decode-0"]
            group.hangs = True
            await it.until(lambda: it.state_of("decode-0") == "silent")
            assert group.num_kills == 0
            if thaws:
                group.thaw()
            else:
                monkeypatch.setattr(group_monitor, "GIVE_UP_S", 0.0)
                await it.until(lambda: it.state_of("decode-0") == "dead")
                group.hangs = False
            await it.until(lambda: it.state_of("decode-0") == "ready")
            assert group.num_launches == (1 if thaws else 2)

    asyncio.run(run())


@pytest.mark.parametrize("thaws", [True, False])
def test_a_router_that_hangs_is_called_silent_and_another_one_takes_its_place_if_it_stays_so(
    monkeypatch: pytest.MonkeyPatch, thaws: bool
) -> None:
    monkeypatch.setattr(router_monitor, "LOOK_AT_ROUTER_S", 0.001)
    monkeypatch.setattr(router_monitor, "SERVING_S", 0.001)
    monkeypatch.setattr(router_monitor, "SILENT_S", 0.0)
    monkeypatch.setattr(router_monitor, "GIVE_UP_S", 60.0)

    async def run() -> None:
        async with serving("decode") as it:
            router = it.supervisor.router
            it.router.hangs = True
            await it.until(lambda: router.status.state == "silent")
            assert it.router.num_kills == 0
            if thaws:
                it.router.hangs = False
                it.router.thawed.set()
            else:
                monkeypatch.setattr(router_monitor, "GIVE_UP_S", 0.0)
                await it.until(lambda: router.status.state == "dead")
                assert "did not answer" in router.status.detail
            await it.until(lambda: router.status.state == "ready")
            assert it.router.num_launches == (1 if thaws else 2)

    asyncio.run(run())


@scenario
async def test_a_group_that_waits_for_room_says_so_and_can_be_given_up() -> None:
    async with serving("decode") as it:
        await it.supervisor.add([it.group("decode-1", has_room=False)])
        await it.until(lambda: it.state_of("decode-1") == "pending")
        assert "has no room for 1 CPU;" in it.managed("decode-1").status.detail
        await it.supervisor.remove(it.managed("decode-1"), migrate=True)
        assert it.supervisor.group("decode-1") is None
        assert not it.groups["decode-1"].is_reserved
        assert it.router.drained == []


@scenario
async def test_a_group_that_waited_starts_when_there_is_room() -> None:
    async with serving("decode") as it:
        await it.supervisor.add([it.group("decode-1", has_room=False)])
        await it.until(lambda: it.state_of("decode-1") == "pending")
        it.groups["decode-1"].found_room.set()
        await it.until(lambda: it.state_of("decode-1") == "ready")


@scenario
async def test_a_role_is_switched_in_the_same_process() -> None:
    async with serving("prefill", "decode") as it:
        await it.supervisor.switch(it.managed("decode-0"), "prefill")
        assert it.supervisor.expected[MODEL] == wanted(2, 0)
        await it.until(lambda: it.state_of("decode-0") == "ready" and it.managed("decode-0").pending_change is None)
        assert it.router.drained == [("decode-0", "prefill", True)]
        assert it.groups["decode-0"].num_launches == 1
        assert it.managed("decode-0").status.role == "prefill"


@scenario
async def test_a_worker_that_has_connected_anew_is_asked_again() -> None:
    async with serving("decode") as it:
        group = it.groups["decode-0"]
        group.obeys = False
        await it.supervisor.switch(it.managed("decode-0"), "prefill")
        await it.until(lambda: it.router.drained == [("decode-0", "prefill", True)])
        group.obeys, group.state = True, "ready"
        group.epoch += 1  # the router that it heard it from is gone
        await it.until(lambda: it.managed("decode-0").pending_change is None)
        assert it.router.drained == [("decode-0", "prefill", True)] * 2


@scenario
async def test_a_group_that_dies_on_its_way_to_another_role_comes_back_in_that() -> None:
    async with serving("prefill", "decode") as it:
        group = it.groups["decode-0"]
        group.obeys = False
        await it.supervisor.switch(it.managed("decode-0"), "prefill")
        await it.until(lambda: bool(it.router.drained))
        group.die("killed")
        await it.until(lambda: group.num_launches == 2 and it.state_of("decode-0") == "ready")
        assert group.served_role == "prefill"
        assert it.managed("decode-0").pending_change is None
        assert len(it.router.drained) == 1


@scenario
async def test_a_dead_group_is_started_in_the_role_it_is_given_meanwhile() -> None:
    async with serving("decode", "prefill") as it:
        group = it.groups["decode-0"]
        group.found_room.clear()
        group.has_room = False
        group.die("killed")
        await it.until(lambda: it.state_of("decode-0") == "starting")
        await it.supervisor.switch(it.managed("decode-0"), "prefill")
        group.found_room.set()
        await it.until(lambda: it.state_of("decode-0") == "ready")
        assert group.served_role == "prefill"
        assert it.router.drained == []


@scenario
async def test_a_group_that_never_starts_is_given_up_and_the_others_serve_on() -> None:
    async with serving("decode") as it:
        broken = it.group("decode-1", has_room=False)
        await it.supervisor.add([broken])

        async def fails(router: Endpoint, ranks_on_host: int) -> None:
            broken.die("no memory")

        broken.serve = fails  # type: ignore[method-assign]
        broken.found_room.set()
        await it.until(lambda: it.state_of("decode-1") == "failed")
        assert it.managed("decode-1").status.detail == "given up after 3 tries: no memory"
        assert it.supervisor.expected[MODEL] == wanted(0, 1)
        assert it.state_of("decode-0") == "ready"
        await it.supervisor.remove(it.managed("decode-1"), migrate=True)
        assert it.supervisor.group("decode-1") is None


@scenario
async def test_why_a_group_has_ended_is_said_while_it_starts_again() -> None:
    async with serving("decode") as it:
        group = it.groups["decode-0"]
        for number, reason in ((2, "out of memory"), (3, "killed")):

            def serves_again(number: int = number) -> bool:
                return group.num_launches == number and it.state_of("decode-0") == "ready"

            it.watcher.details.clear()
            group.die(reason)
            await it.until(serves_again)
            assert f"starting its processes, after: {reason}" in it.watcher.details


@scenario
async def test_the_next_router_hears_what_is_wanted_now() -> None:
    async with serving("prefill", "decode") as it:
        await it.supervisor.remove(it.managed("prefill-0"), migrate=True)
        await it.until(lambda: it.supervisor.group("prefill-0") is None)
        it.router.told.clear()
        it.router.die("killed")
        await it.until(lambda: it.router.num_launches == 2 and bool(it.router.expected))
        assert set(it.router.expected) == {wanted(0, 1)}


@scenario
async def test_a_deployment_may_begin_without_any_group() -> None:
    async with serving() as it:
        assert it.supervisor.expected[MODEL] == wanted(0, 0)
        await it.supervisor.add([it.group("decode-0")])
        await it.until(lambda: it.state_of("decode-0") == "ready")


def test_a_member_that_fails_at_the_start_is_the_end_of_it() -> None:
    async def run() -> None:
        router, watcher = FakeRouter(), Watcher()
        supervisor = Supervisor(CONFIG, router, watcher)
        group = FakeGroup("decode-0")

        async def fails(at: Endpoint, ranks_on_host: int) -> None:
            group.die("no such model")

        group.serve = fails  # type: ignore[method-assign]
        with pytest.raises(StartFailed, match="decode-0: no such model"):
            await supervisor.start([group])
        await supervisor.stop()

    asyncio.run(run())


@scenario
async def test_if_there_is_no_router_when_the_cluster_is_to_drain_the_next_one_is_drained() -> None:
    async with serving("decode") as it:
        it.router.die("killed")
        await it.until(lambda: not it.supervisor.router.ready.is_set())
        await it.supervisor.router.drain(30.0)
        assert it.router.drained_in == [2]


@scenario
async def test_if_the_router_dies_while_it_drains_the_next_one_is_drained() -> None:
    async with serving("decode") as it:
        it.router.dies_in_drain = True
        await it.supervisor.router.drain(30.0)
        assert it.router.drained_in == [1, 2]
        assert it.state_of("decode-0") == "ready"


@scenario
async def test_who_leaves_waits_out_the_grace_whether_there_is_a_router_or_not() -> None:
    async with serving("decode") as it:
        loop = asyncio.get_running_loop()
        for it.router.dies_in_drain in (False, True):
            begun_s = loop.time()
            await it.supervisor.router.leave(0.05)
            assert loop.time() - begun_s >= 0.05
        assert it.router.left_in == [1, 1]


@scenario
async def test_a_drain_without_a_router_waits_no_longer_than_it_may() -> None:
    async with serving("decode") as it:
        it.supervisor.router.ready.clear()  # and nothing sets it
        await it.supervisor.router.drain(-1.0)  # its margin is a second
        assert it.router.drained_in == []


@pytest.mark.parametrize("leaves_clients", [False, True])
def test_a_router_whose_clients_are_left_to_the_next_driver_does_not_hear_of_the_end(leaves_clients: bool) -> None:
    async def run() -> None:
        router, group = FakeRouter(), FakeGroup("decode-0")
        supervisor = Supervisor(CONFIG, router, Watcher())
        await supervisor.start([group])
        await supervisor.stop(leaves_clients=leaves_clients)
        assert (router.is_asked_to_stop, group.is_asked_to_stop) == (not leaves_clients, True)
        assert router.num_kills > 0

    asyncio.run(run())


@scenario
async def test_the_router_is_told_when_no_decode_group_can_come_back_by_itself() -> None:
    reason = f"{REFUSES} version v1: /m/model.safetensors has other content now"
    async with serving("prefill", "decode", config=replace(CONFIG, restart=RestartConfig(60.0, 60.0))) as it:
        await it.supervisor.add([it.group("decode-1")])
        await it.until(lambda: it.state_of("decode-1") == "ready")
        it.groups["decode-0"].die(reason)
        await it.until(lambda: it.state_of("decode-0") == "dead")
        assert it.router.expected[-1].hindrance == ""
        it.groups["decode-1"].die(reason)
        await it.until(lambda: it.state_of("decode-1") == "dead")
        assert it.router.expected[-1].hindrance == reason
        await it.supervisor.add([it.group("decode-2", version="v2")])
        assert it.router.expected[-1].hindrance == ""


TWO = CONFIG.with_models([ModelEntry("/m", "chat"), ModelEntry("/d", "draft")])


def test_a_model_that_cannot_be_started_keeps_its_own_clients_out_and_no_others() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            await it.supervisor.add([it.group("decode-0", model="chat"), it.group("decode-1", model="draft")])
            await it.until(lambda: it.state_of("decode-0") == it.state_of("decode-1") == "ready")
            reason = f"the files {REFUSES}"
            it.groups["decode-1"].die(reason)
            await it.until(lambda: it.router.told[-1]["draft"].hindrance == reason)
            assert it.router.told[-1]["chat"] == ExpectedWorkers(0, 1, has_served=True)
            assert it.state_of("decode-0") == "ready"

    asyncio.run(check())


def test_the_groups_of_a_model_that_is_removed_end_and_those_of_the_others_stay() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            chat, draft = it.group("decode-0", model="chat"), it.group("decode-1", model="draft")
            late = it.group("decode-2", model="draft", has_room=False)
            await it.supervisor.add([chat, draft, late])
            await it.until(lambda: it.state_of("decode-0") == it.state_of("decode-1") == "ready")

            async def drained() -> None:
                assert it.supervisor.expected["draft"].num_decode == 0
                draft.die("ended by itself")  # as the router's drain does to it
                await it.until(lambda: it.supervisor.group("decode-1") is None)

            await it.supervisor.end_model("draft", drained())
            assert [managed.status.name for managed in it.supervisor.groups] == ["decode-0"]
            assert draft.num_launches == 1
            assert set(it.router.told[-1]) == {"chat"}
            assert not late.is_reserved

    asyncio.run(check())


def test_a_worker_that_dies_while_its_model_is_removed_comes_back_for_the_requests_that_run() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            draft = it.group("decode-1", model="draft")
            await it.supervisor.add([draft])
            await it.until(lambda: it.state_of("decode-1") == "ready")

            async def drained() -> None:
                draft.die("killed")
                await it.until(lambda: draft.num_launches == 2 and it.state_of("decode-1") == "ready")
                draft.die("ended by itself")
                await it.until(lambda: it.supervisor.group("decode-1") is None)

            await it.supervisor.end_model("draft", drained())
            assert draft.num_launches == 2

    asyncio.run(check())


def test_a_model_without_groups_is_cold_and_waits_for_one() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            assert it.router.told[-1]["draft"] == ExpectedWorkers(0, 0)
            it.supervisor.add_model("code", 128)
            assert it.supervisor.expected["code"] == ExpectedWorkers(0, 0, 128)

    asyncio.run(check())


def test_the_processes_of_a_group_that_moves_go_on_with_the_other_model() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            group = it.group("decode-0", model="chat")
            await it.supervisor.add([group])
            await it.until(lambda: it.state_of("decode-0") == "ready")
            config = TWO.of_model("draft")
            await it.supervisor.move(
                it.managed("decode-0"), Deployment(config, "secret", None, False, "v7"), {}, "decode"
            )
            assert (it.router.told[-1]["chat"].num_decode, it.router.told[-1]["draft"].num_decode) == (0, 1)
            await it.until(lambda: it.state_of("decode-0") == "ready")
            status = it.managed("decode-0").status
            assert (status.model, status.version, status.restarts) == ("draft", "v7", 0)
            assert (group.num_launches, group.num_kills) == (1, 0)
            assert it.router.drained == [("decode-0", None, True)]

    asyncio.run(check())


def test_a_group_that_dies_on_its_way_to_another_model_is_started_for_that() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            group = it.group("decode-0", model="chat", obeys=False)
            await it.supervisor.add([group])
            await it.until(lambda: it.state_of("decode-0") == "ready")
            config = TWO.of_model("draft")
            await it.supervisor.move(it.managed("decode-0"), Deployment(config, "secret", None, False), {}, "decode")
            group.die("killed")
            await it.until(lambda: group.num_launches == 2 and it.state_of("decode-0") == "ready")
            assert it.managed("decode-0").status.model == "draft"
            assert it.managed("decode-0").pending_change is None

    asyncio.run(check())


def test_after_a_restart_of_the_driver_a_model_that_cannot_be_started_does_not_hold_up_the_others() -> None:
    async def check() -> None:
        router = FakeRouter()
        supervisor = Supervisor(TWO, router, Watcher())
        chat, draft = FakeGroup("decode-0", model="chat"), DyingGroup("decode-1", model="draft")
        router.groups = {"decode-0": chat, "decode-1": draft}
        async with asyncio.timeout(20):
            await supervisor.start([chat, draft], has_served=True)
        supervisor.settle()
        assert draft.num_launches == 3
        expected = supervisor.expected
        assert (expected["chat"].num_decode, expected["chat"].hindrance) == (1, "")
        assert expected["draft"].num_decode == 0
        assert expected["draft"].hindrance == "decode-1: given up after 3 tries: no such file"
        await supervisor.stop()

    asyncio.run(check())


def test_after_a_restart_of_the_driver_the_only_language_model_does_not_hold_up_the_repository() -> None:
    async def check() -> None:
        router = FakeRouter()
        supervisor = Supervisor(replace(CONFIG, repository=RepositoryConfig(("/r",))), router, Watcher())
        chat = DyingGroup("decode-0")
        router.groups = {"decode-0": chat}
        async with asyncio.timeout(20):
            await supervisor.start([chat], has_served=True)
        supervisor.settle()
        assert supervisor.expected[MODEL].hindrance == "decode-0: given up after 3 tries: no such file"
        await supervisor.stop()

    asyncio.run(check())


def test_pools_that_are_added_while_the_cluster_comes_up_do_not_decide_whether_it_does() -> None:
    async def check() -> None:
        router = FakeRouter()
        supervisor = Supervisor(TWO, router, Watcher())
        chat, draft = FakeGroup("decode-0", model="chat"), DyingGroup("decode-1", model="draft")
        router.groups = {"decode-0": chat, "decode-1": draft}
        async with asyncio.timeout(20):
            await supervisor.start([chat])
            await supervisor.add([draft])
            with pytest.raises(StartFailed, match="no such file"):
                await supervisor.unless_failed(supervisor.served("decode-1"))
        supervisor.settle()
        assert supervisor.expected["chat"].num_decode == 1
        await supervisor.stop()

    asyncio.run(check())


def to_draft(role: Role = "decode") -> tuple[Deployment, dict[Role, PoolResources], Role]:
    return Deployment(TWO.of_model("draft"), "secret", None, False), {}, role


def test_a_group_that_cannot_load_its_next_model_is_given_up_with_the_reason() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            group, other = it.group("decode-0", model="chat", cannot_load={"draft"}), it.group("decode-1", model="chat")
            await it.supervisor.add([group, other])
            await it.until(lambda: it.state_of("decode-0") == it.state_of("decode-1") == "ready")
            await it.supervisor.move(it.managed("decode-0"), *to_draft())
            await it.until(lambda: it.state_of("decode-0") == "failed")
            assert "draft cannot be loaded" in it.managed("decode-0").status.detail
            assert group.served_models == ["chat", "draft", "draft", "draft"]
            assert group.num_launches == 3  # the first try was in the process that served before
            assert it.router.told[-1]["draft"].hindrance == f"decode-0: {it.managed('decode-0').status.detail}"
            assert it.state_of("decode-1") == "ready"

    asyncio.run(check())


class DyingGroup(FakeGroup):
    async def serve(self, router: Endpoint, ranks_on_host: int) -> None:
        self.die("no such file")


def test_a_group_can_be_removed_while_it_moves() -> None:
    async def check() -> None:
        async with serving(config=TWO) as it:
            group = it.group("decode-0", model="chat", obeys=False)
            await it.supervisor.add([group])
            await it.until(lambda: it.state_of("decode-0") == "ready")
            await it.supervisor.move(it.managed("decode-0"), *to_draft())
            await it.supervisor.remove(it.managed("decode-0"), migrate=True)
            group.die("ended by itself")
            await it.until(lambda: it.supervisor.group("decode-0") is None)
            assert group.served_models == ["chat"]

    asyncio.run(check())
