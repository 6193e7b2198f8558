"""Workers come, go and change roles under load: every stream has the text that it has in a cluster left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.e2e.conftest import MakeCluster
from tests.support.e2e.fleet_calls import (
    bring_to,
    change_role,
    decode_workers,
    drain,
    members,
    operator,
    scale,
    wait_for_fleet,
)
from tests.support.e2e.freezing import frozen
from tests.support.e2e.observation import Scrape, moved, status_of, wait_until_at_rest
from tests.support.e2e.serving_cluster import END_TIMEOUT_S, ROOT, ServingCluster
from tests.support.e2e.streams import BackgroundStream, complete, prompt_of, streaming
from tests.support.e2e.streams import client_of as openai_of

SIZES = ((20, 350), (25, 350), (120, 300), (150, 300), (300, 250), (900, 60))


def streams_of(fleet: ServingCluster, salt: str) -> list[BackgroundStream]:
    return [
        BackgroundStream(fleet, prompt_of(num_prompt, variant=60 + number), num_output, salt)
        for number, (num_prompt, num_output) in enumerate(SIZES)
    ]


@pytest.fixture(scope="module")
def expected(fleet_of_all: ServingCluster) -> list[str]:
    """The texts of a cluster that is left alone."""
    bring_to(fleet_of_all, 1, 2)
    streams = streams_of(fleet_of_all, "alone")
    with streaming(streams):
        return [stream.join() for stream in streams]


def check(streams: list[BackgroundStream], expected: list[str]) -> None:
    """Nothing failed, each ended once, and each with the text that it should have."""
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [stream.finishes for stream in streams] == [["length"]] * len(streams)
    assert [stream.join() for stream in streams] == expected


def test_decode_workers_come_and_go_under_load(fleet: ServingCluster, expected: list[str]) -> None:
    wait_for_fleet(fleet, 1, 2)
    before = set(members(fleet))
    streams = streams_of(fleet, "grow")
    with streaming(streams):
        streams[0].wait_for_pieces(5)
        (added,) = scale(fleet, "decode", 3)
        wait_for_fleet(fleet, 1, 3)
    check(streams, expected)
    assert set(members(fleet)) == before | {added}
    leaving = decode_workers(fleet)[0]
    pids = fleet.member(leaving).pids
    streams = streams_of(fleet, "shrink")
    with streaming(streams):
        for stream in streams[:4]:
            stream.wait_for_pieces(5)
        drain(fleet, leaving)
        wait_for_fleet(fleet, 1, 2)
    check(streams, expected)
    fleet.wait_for(lambda: not [process for process in fleet.processes() if process.pid in pids], 30.0)
    assert set(members(fleet)) == (before | {added}) - {leaving}
    wait_until_at_rest(fleet)


def test_a_worker_changes_its_role_and_back_under_load(fleet: ServingCluster, expected: list[str]) -> None:
    wait_for_fleet(fleet, 1, 2)
    name = decode_workers(fleet)[0]
    old = fleet.member(name)
    for role, prefill, decode in (("prefill", 2, 1), ("decode", 1, 2)):
        streams = streams_of(fleet, f"to {role}")
        with streaming(streams):
            for stream in streams[:4]:
                stream.wait_for_pieces(5)
            change_role(fleet, name, role)
            wait_for_fleet(fleet, prefill, decode)
            assert set(dict(members(fleet)[name]["startup_s"])) == {"draining", "connecting"}
        check(streams, expected)
    assert fleet.member(name).pids == old.pids
    assert fleet.member(name).restarts == old.restarts
    wait_until_at_rest(fleet)


def test_a_worker_that_changes_its_role_serves_in_the_new_one(fleet: ServingCluster, expected: list[str]) -> None:
    """With the only prefill worker gone, remote prefill goes over the one that was a decode worker."""
    wait_for_fleet(fleet, 1, 2)
    name = decode_workers(fleet)[0]
    change_role(fleet, name, "prefill")
    wait_for_fleet(fleet, 2, 1)
    change_role(fleet, "prefill-0", "decode")
    wait_for_fleet(fleet, 1, 2)
    before = Scrape.of(fleet)
    streams = streams_of(fleet, "exchanged")
    with streaming(streams):
        pass
    check(streams, expected)
    assert moved(before, Scrape.of(fleet), "slipstream:transfers_total") > 0
    change_role(fleet, "prefill-0", "prefill")
    wait_for_fleet(fleet, 2, 1)
    change_role(fleet, name, "decode")
    wait_for_fleet(fleet, 1, 2)


def test_nothing_is_lost_between_zero_workers_and_the_next(fleet: ServingCluster, expected: list[str]) -> None:
    wait_for_fleet(fleet, 1, 2)
    scale(fleet, "prefill", 0)
    scale(fleet, "decode", 0)
    fleet.wait_for(lambda: not members(fleet), 60.0)
    assert fleet.get("/health/ready")[0] == 200
    streams = streams_of(fleet, "asleep")
    with streaming(streams):
        fleet.wait_for(lambda: status_of(fleet)["num_waiting"] == len(streams), 60.0)
        assert fleet.get("/health/ready")[0] == 200
        scale(fleet, "decode", 2)
        scale(fleet, "prefill", 1)
    check(streams, expected)
    wait_for_fleet(fleet, 1, 2)
    wait_until_at_rest(fleet)


def test_a_worker_that_dies_on_its_way_out_is_gone_and_its_requests_go_on(
    fleet: ServingCluster, expected: list[str]
) -> None:
    wait_for_fleet(fleet, 1, 2)
    name = decode_workers(fleet)[0]
    streams = streams_of(fleet, "dies leaving")
    with streaming(streams):
        for stream in streams[:4]:
            stream.wait_for_pieces(5)
        (pid,) = fleet.member(name).pids
        with frozen(pid):  # it does not get out before
            drain(fleet, name, migrate=False)
            os.kill(pid, signal.SIGKILL)
        fleet.wait_for(lambda: name not in members(fleet), 60.0)
    check(streams, expected)
    (added,) = scale(fleet, "decode", 2)
    assert added == name  # free again
    wait_for_fleet(fleet, 1, 2)
    wait_until_at_rest(fleet)


def test_a_worker_that_dies_on_its_way_to_another_role_comes_back_in_that(
    fleet: ServingCluster, expected: list[str]
) -> None:
    wait_for_fleet(fleet, 1, 2)
    name = decode_workers(fleet)[0]
    streams = streams_of(fleet, "dies switching")
    with streaming(streams):
        for stream in streams[:4]:
            stream.wait_for_pieces(5)
        old = fleet.member(name)
        with frozen(*old.pids):  # it does not get there before
            change_role(fleet, name, "prefill")
            os.kill(old.pids[0], signal.SIGKILL)
        fleet.wait_until_restarted(name, old.pids)
        wait_for_fleet(fleet, 2, 1)
    check(streams, expected)
    assert fleet.member(name).role == "prefill"
    change_role(fleet, name, "decode")
    wait_for_fleet(fleet, 1, 2)
    wait_until_at_rest(fleet)


def test_a_new_worker_that_dies_while_it_starts_is_started_again(fleet: ServingCluster) -> None:
    wait_for_fleet(fleet, 1, 2)
    (name,) = scale(fleet, "prefill", 2)
    fleet.wait_for(lambda: bool(fleet.pids(name)), 60.0)
    old = fleet.member(name)
    os.kill(old.pids[0], signal.SIGKILL)
    fleet.wait_until_restarted(name, old.pids)
    wait_for_fleet(fleet, 2, 2)
    with openai_of(fleet) as client:
        assert complete(client, prompt_of(60, variant=3), 4)
    scale(fleet, "prefill", 1)
    wait_for_fleet(fleet, 1, 2)


def test_a_router_that_dies_knows_afterwards_what_is_wanted(fleet: ServingCluster) -> None:
    """Without prefill workers wanted, the next router is ready without them."""
    wait_for_fleet(fleet, 1, 2)
    scale(fleet, "prefill", 0)
    wait_for_fleet(fleet, 0, 2)
    old = fleet.member("router")
    os.kill(old.pids[0], signal.SIGKILL)
    fleet.wait_until_restarted("router", old.pids)
    wait_until_at_rest(fleet)
    scale(fleet, "prefill", 1)
    wait_for_fleet(fleet, 1, 2)


def slipstream(serving: ServingCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as the user of the cluster runs it."""
    return subprocess.run(
        [sys.executable, "-m", "slipstream.cluster.cli", *arguments],
        env=serving.environment,
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_the_commands_do_what_they_say_and_say_what_they_cannot(fleet: ServingCluster) -> None:
    wait_for_fleet(fleet, 1, 2)
    grown = slipstream(fleet, "scale", "prefill=2", "decode=1", "--name", fleet.name)
    assert grown.returncode == 0, grown.stderr
    lines = grown.stdout.splitlines()
    assert any(line.startswith("prefill-1: prefill, ready (loading ") for line in lines)
    assert sum(line.endswith(": gone") for line in lines) == 1
    wait_for_fleet(fleet, 2, 1)
    switched = slipstream(fleet, "role", "prefill-1", "decode")
    assert switched.returncode == 0, switched.stderr
    assert switched.stdout.splitlines()[-1].startswith("prefill-1: decode, ready (draining ")
    wait_for_fleet(fleet, 1, 2)
    status = slipstream(fleet, "status", fleet.name).stdout
    assert "  prefill: 1 ready\n  decode: 2 ready\n" in status
    fleet_after = json.loads(slipstream(fleet, "drain", "prefill-1", "--json", "--no-migrate").stdout)
    assert [member["name"] for member in fleet_after["members"] if member["name"] == "prefill-1"] == []
    unknown = slipstream(fleet, "drain", "decode-99")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("slipstream: there is no worker 'decode-99'; there are: ")
    wrong = slipstream(fleet, "scale", "decode=2", "--token", "not-the-token")
    assert wrong.returncode == 1
    assert "not the token of this cluster" in wrong.stderr
    nowhere = slipstream(fleet, "scale", "decode=2", "--name", "missing")
    assert nowhere.returncode == 1
    assert "no cluster named missing runs here" in nowhere.stderr
    assert slipstream(fleet, "scale", "encode=2").returncode == 2
    elsewhere = operator(fleet)
    shown = slipstream(fleet, "status", "--json", "--url", elsewhere.url, "--token", elsewhere.token)
    (look,) = json.loads(shown.stdout)
    assert look["router"]["ready"]
    assert elsewhere.token not in shown.stdout
    slipstream(fleet, "scale", "decode=2", "--url", elsewhere.url, "--token", elsewhere.token)
    wait_for_fleet(fleet, 1, 2)


class Releases:
    """Versions of Slipstream that differ in their number alone, installed one after the other where a cluster's
    processes find it."""

    def __init__(self, serving: ServingCluster) -> None:
        self._folder = serving.home / "releases"
        self._installed = self._folder / "installed"
        serving.environment |= {"PYTHONPATH": str(self._installed), "PYTHONSAFEPATH": "1"}
        serving.working_directory = serving.home  # from the tests' own, a checkout, Ray would import that one

    def __call__(self, version: str) -> None:
        package = self._folder / version / "slipstream"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
        for part in ("cluster", "kernels", "kv_transfer", "router", "workers"):
            (package / part).symlink_to(ROOT / part)
        link = self._folder / "next"
        link.symlink_to(package.parent)
        link.rename(self._installed)


def test_a_cluster_that_begins_empty_serves_and_survives_its_driver_and_lets_streams_end_without_its_guardian(
    make_cluster: MakeCluster,
) -> None:
    serving = make_cluster({"prefill": {"replicas": 0}, "decode": {"replicas": 0}})
    release = Releases(serving)
    release("1.0.0")
    serving.start()
    assert serving.get("/health/ready")[0] == 200
    with openai_of(serving) as client:
        waiting = BackgroundStream(serving, prompt_of(40), 8)
        with streaming([waiting]):
            serving.wait_for(lambda: status_of(serving)["num_waiting"] == 1, 60.0)
            scale(serving, "decode", 1)
        assert waiting.finishes == ["length"]
        assert complete(client, prompt_of(200), 8)
        wait_until_at_rest(serving)
        assert scale(serving, "decode", 2) == ["decode-1"]
        scale(serving, "prefill", 1)
        serving.wait_for(lambda: bool(serving.pids("decode-1")), 60.0)
        running = BackgroundStream(serving, prompt_of(20), 3000)
        state = serving.state
        assert state is not None
        with streaming([running]):
            running.wait_for_pieces(5)
            drain(serving, "decode-0")
            release("1.1.0")
            again = slipstream(serving, "restart")  # `test_kills` has a driver that is killed
            assert again.returncode == 0, again.stderr
            assert "Slipstream 1.0.0 -> 1.1.0; clients wait" in again.stdout
        assert (running.error, running.finishes) == (None, ["length"])
    serving.wait_until_served_by_another(state.driver)
    wait_for_fleet(serving, 1, 1)  # of two that decode, one was to leave
    assert {worker["build"]["slipstream"] for worker in status_of(serving)["workers"]} == {"1.1.0"}
    assert f"Slipstream 1.1.0, of guardian {serving.pid} (1.0.0)" in slipstream(serving, "status").stdout
    assert set(members(serving)) == {"prefill-0", "decode-0"}
    last = BackgroundStream(serving, prompt_of(100), 1500)
    with streaming([last]):
        last.wait_for_pieces(5)
        assert serving.processes()  # all of them are looked for at the end
        os.kill(serving.pid, signal.SIGKILL)
        assert last.join()
    assert (last.error, last.finishes) == (None, ["length"])
    assert serving.left_behind(END_TIMEOUT_S) == []
    assert serving.state is None


def test_groups_of_several_ranks_exchange_their_roles(make_cluster: MakeCluster) -> None:
    serving = make_cluster({"prefill": {"tp": 2}, "decode": {"tp": 2}})
    serving.start()
    pids = {name: serving.member(name).pids for name in ("prefill-0", "decode-0")}
    with openai_of(serving) as client:
        before = complete(client, prompt_of(300), 40, "before")
        change_role(serving, "decode-0", "prefill")
        wait_for_fleet(serving, 2, 0)
        change_role(serving, "prefill-0", "decode")
        wait_for_fleet(serving, 1, 1)
        assert complete(client, prompt_of(300), 40, "after") == before
    wait_until_at_rest(serving)
    assert {name: serving.member(name).pids for name in pids} == pids
