"""Simulated workers whose sequences move while they decode, and links that are cut under them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.sim_config import FaultConfig, SimConfig, Split
from slipstream.cluster.tools.sim.sim_fleet import SimFleet
from slipstream.cluster.tools.sim.sim_run import SimRun, find_profile
from slipstream.cluster.tools.sim.sim_world import World, WorldConfig
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.cluster.tools.workload.workload import open_workload
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.protocol.messages import Role

PROFILE = replace(find_profile("h200-llama-8b"), start_s=3.0, role_switch_s=0.5)


def a_world(profile: WorkerProfile = PROFILE, num_decode: int = 2, num_prefill: int = 0) -> tuple[World, SimFleet]:
    world = World(WorldConfig(DispatchConfig(), profile, 16, prefix_caching=False))
    fleet = SimFleet(world)
    fleet.start("decode", num_decode)
    fleet.start("prefill", num_prefill)
    return world, fleet


def long_answers(number: int, every_s: float = 0.02, num_tokens: int = 1000) -> Iterator[Arrival]:
    return (Arrival(at * every_s, 300 + 40 * at, num_tokens) for at in range(number))


def soon(coroutine: object) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)  # type: ignore[attr-defined]


def check_all_is_given_back(world: World) -> None:
    """Once nothing runs, no worker holds a page, a transfer or a move."""
    end_s = world.clock.now_s + 30.0
    while (world.clock.next_s or end_s) < end_s:
        world.clock.step()
    for worker in world.workers.values():
        assert not worker.attempts
        worker.check_integrity()
    assert world.network.num_in_flight == 0
    world.dispatcher.check_integrity()


def test_who_drains_hands_its_sequences_over_and_goes_long_before_they_end() -> None:
    world, fleet = a_world()
    gone_s: list[float] = []

    def drain(_: object) -> None:
        soon(fleet.remove("w0"))

    def look(_: object) -> None:
        if fleet.worker("w0") is None:
            gone_s.append(world.clock.now_s)
        else:
            world.clock.at(world.clock.now_s + 0.05, look)

    world.clock.at(1.0, drain)
    world.clock.at(1.0, look)
    world.run(long_answers(20))
    totals = world.dispatcher.snapshot(world.clock.now_s).totals
    assert world.outcomes.ends == {"stop": 20}
    assert sum(world.outcomes.num_output) == 20 * 1000
    assert totals.migrations["moved"] >= 5
    assert not totals.retries
    assert gone_s[0] < 3.0 < min(world.outcomes.ended_s)
    check_all_is_given_back(world)


def test_a_move_is_a_pause_of_a_few_steps_and_the_pages_are_counted_on_the_link() -> None:
    world, fleet = a_world()
    world.clock.at(1.0, lambda _: soon(fleet.remove("w0")))
    world.run(long_answers(20))
    totals = world.dispatcher.snapshot(world.clock.now_s).totals
    num_moved = totals.migrations["moved"]
    assert sum(totals.migration_pauses.counts) == num_moved
    step_s = PROFILE.decode.decode_s(20, 20 * 1500)
    assert step_s < totals.migration_pauses.total_s / num_moved < 6 * step_s
    assert world.network.moved_bytes >= num_moved * 300 * PROFILE.kv_bytes_per_token


def test_without_migration_they_end_where_they_are() -> None:
    world, fleet = a_world()
    world.clock.at(1.0, lambda _: soon(fleet.remove("w0", migrate=False)))
    world.run(long_answers(20))
    totals = world.dispatcher.snapshot(world.clock.now_s).totals
    assert world.outcomes.ends == {"stop": 20}
    assert not totals.migrations
    check_all_is_given_back(world)


def test_where_nobody_has_room_they_end_where_they_are() -> None:
    world, fleet = a_world(num_decode=1, num_prefill=1)
    world.clock.at(1.0, lambda _: soon(fleet.switch_role("w0", "prefill")))
    world.clock.at(1.1, lambda _: soon(fleet.switch_role("w1", "decode")))
    world.run(long_answers(20))
    assert world.outcomes.ends == {"stop": 20}
    check_all_is_given_back(world)


def test_the_other_end_dies_on_the_way_and_they_go_on_here() -> None:
    slow = replace(PROFILE, link_bytes_per_s=1e8)
    world, fleet = a_world(slow)
    world.clock.at(1.0, lambda _: soon(fleet.remove("w0")))
    world.clock.at(1.3, lambda _: fleet.kill("w1"))
    world.run(long_answers(20))
    totals = world.dispatcher.snapshot(world.clock.now_s).totals
    assert world.outcomes.ends == {"stop": 20}
    assert totals.migrations["lost"] >= 1
    check_all_is_given_back(world)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_on_the_way_nothing_is_lost_and_all_is_given_back(seed: int) -> None:
    profile = replace(PROFILE, num_pages=1200, link_bytes_per_s=2e9, workers_per_host=2)
    world, fleet = a_world(profile, num_decode=4, num_prefill=2)
    for at in range(10):
        role: Role = "prefill" if at % 3 == 0 else "decode"
        world.clock.at(0.4 + 0.37 * at, partial(_switch, fleet, f"w{(seed + 3 * at) % 6}", role))
    for at, name in enumerate(("w1", "w4")):
        world.clock.at(1.1 + 0.3 * seed + at, lambda _, name=name: fleet.kill(name))
    nics = world.machines.nic(0), world.machines.nic(1)
    world.clock.at(0.8, lambda _: world.network.cut_link(*nics, True))
    world.clock.at(8.8, lambda _: world.network.cut_link(*nics, False))
    world.run(long_answers(60, 0.05, 400))
    assert world.outcomes.ends == {"stop": 60}
    assert sum(world.outcomes.num_output) == 60 * 400
    assert world.dispatcher.snapshot(world.clock.now_s).totals.migrations["moved"] > 0
    check_all_is_given_back(world)


def _switch(fleet: SimFleet, name: str, role: Role, _: object) -> None:
    member = fleet.state().member(name)
    if member is not None and member.state == "ready":
        soon(fleet.switch_role(name, role))


def test_a_link_that_is_cut_is_closed_for_placement_and_open_again_once_it_is_mended() -> None:
    world, _ = a_world(num_decode=1, num_prefill=1)
    nics = world.machines.nic(0), world.machines.nic(1)
    num_closed: list[int] = []

    def look(_: object) -> None:
        num_closed.append(len(world.dispatcher.snapshot(world.clock.now_s).closed_links))
        world.clock.at(world.clock.now_s + 1.0, look)

    world.clock.at(2.0, lambda _: world.network.cut_link(*nics, True))
    world.clock.at(20.0, lambda _: world.network.cut_link(*nics, False))
    world.clock.at(0.0, look)
    world.run(Arrival(at * 0.1, 4000, 40) for at in range(900))
    assert world.outcomes.ends == {"stop": 900}
    assert world.network.num_lost > 0
    assert max(num_closed[:20]) == 1
    assert num_closed[-1] == 0
    check_all_is_given_back(world)


def test_links_are_cut_and_mended_by_seed() -> None:
    config = SimConfig(faults=FaultConfig(links=5, cut_s=8.0), seed=2)
    workload = open_workload("isl=4000,osl=60,rate=20", 600)
    run = SimRun(config, PROFILE, workload, 30.0)
    result, again = run.run("slo", Split(2, 2)), run.run("slo", Split(2, 2))
    assert result.outcomes.ends == {"stop": 600}
    assert result.faults == again.faults
    assert {fault.kind for fault in result.faults} == {"link"}
    assert all(fault.other not in ("", fault.worker) for fault in result.faults)
