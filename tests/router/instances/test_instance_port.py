"""Hosts and instances come, are lost, and come again; routers too."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.router.instances.frames.frame_reader import FrameError, frame_start
from slipstream.router.instances.host_messages import ProcessUsage, UsageReport, usage_head, usage_of
from slipstream.router.instances.instance_port import InstancePort, InstancePortConfig
from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.process.listening import listening_at
from slipstream.router.tensor_memory.region_pool import RegionPool
from tests.support.router.in_loop import in_loop
from tests.support.router.instance_lab import RecordingObserver, RecordingOwner, instance_lab, start_of
from tests.support.router.scripted_instance import TOKEN, Peer, host_peer, instance_peer
from tests.support.router.until import until


@in_loop
async def test_a_launch_waits_for_a_host_and_goes_to_the_emptiest(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        first = lab.port.launch(start_of("m_0_0"), RecordingOwner())
        a = await lab.host("a")
        assert (await a.expect("start"))["name"] == "m_0_0"
        b = await lab.host("b")
        second = lab.port.launch(start_of("m_0_1"), RecordingOwner())
        assert (await b.expect("start"))["name"] == "m_0_1"
        third = lab.port.launch(start_of("m_0_2"), RecordingOwner(), host="b")
        start = await b.expect("start")
        assert start["name"] == "m_0_2"
        assert start["model_file"] == "model.py"
        assert [first.host, second.host, third.host] == ["a", "b", "b"]
        assert {host.name: host.num_instances for host in lab.port.hosts} == {"a": 1, "b": 2}
        assert lab.port.ledger.num_launches == 3


@in_loop
async def test_instances_of_a_version_are_spread_although_a_host_has_more_of_others(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        await lab.host("a")
        links = [lab.port.launch(start_of("m_0_0"), RecordingOwner())]
        await lab.host("b")
        for number in range(2):
            lab.port.launch(replace(start_of(f"other_0_{number}"), model="other"), RecordingOwner(), host="b")
        links.append(lab.port.launch(start_of("m_0_1"), RecordingOwner()))
        on_gpu = [replace(start_of(f"m_1_{n}"), kind="KIND_GPU", device=n % 2) for n in range(4)]
        gpus = [lab.port.launch(start, RecordingOwner()) for start in on_gpu]
        assert [link.host for link in links] == ["a", "b"]
        assert [link.host for link in gpus] == ["a", "a", "b", "b"]  # each device has one of this version


@in_loop
async def test_nothing_is_started_until_the_hosts_of_the_deployment_are_there_or_are_late(tmp_path: Path) -> None:
    async with instance_lab(tmp_path, gather_s=30.0, num_hosts=2) as lab:
        links = [lab.port.launch(start_of(name), RecordingOwner()) for name in ("m_0_0", "m_0_1")]
        await lab.host("a")
        assert [link.host for link in links] == ["", ""]
        await lab.host("b")
        assert sorted(link.host for link in links) == ["a", "b"]
    async with instance_lab(tmp_path, gather_s=0.1, num_hosts=2) as lab:
        link = lab.port.launch(start_of(), RecordingOwner())
        await lab.host("a")
        await until(lambda: link.host == "a")


@in_loop
async def test_an_end_is_heard_once_and_empties_the_ledger(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        host = await lab.host()
        owner, failed = RecordingOwner(), RecordingOwner()
        link = lab.port.launch(start_of(), owner)
        other = lab.port.launch(start_of(), failed)
        await lab.instance(link.start.launch)
        await owner.next("connected")
        end = {"returncode": -9, "reason": "killed", "log_tail": "oops"}
        for _ in range(2):
            host.send("exited", launch=link.start.launch, **end)
            host.send("start_failed", launch=other.start.launch, error="no interpreter")
        ended = await owner.next("ended")
        assert (ended.returncode, ended.reason, ended.log_tail) == (-9, "killed", "oops")
        ended = await failed.next("ended")
        assert (ended.returncode, ended.reason) == (None, "no interpreter")
        host.send("what")  # so that all before it was read
        await host.expect("start")
        await host.expect("start")
        await host.wait_closed()
        assert owner.events.empty()
        assert failed.events.empty()
        assert lab.port.ledger == replace(lab.port.ledger, num_hosts=0, num_launches=0, num_connected=0)


@in_loop
async def test_a_stopped_instance_is_finalised_and_its_host_is_to_kill_it_later(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        host = await lab.host()
        owner, slow = RecordingOwner(), RecordingOwner()
        link = lab.port.launch(start_of(), owner)
        peer = await lab.instance(link.start.launch)
        await owner.next("connected")
        link.stop(7.0)
        link.stop(1.0)
        await peer.expect("finalize")
        await host.expect("start")
        stop = await host.expect("stop")
        assert (stop["launch"], stop["grace_s"]) == (link.start.launch, 7.0)
        starting = lab.port.launch(start_of(), slow)
        starting.stop(7.0)
        await host.expect("start")
        assert (await host.expect("stop"))["grace_s"] == 0.0  # it has never been connected, so it has no model


@in_loop
async def test_a_launch_that_is_stopped_before_there_is_a_host_has_ended(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        owner = RecordingOwner()
        lab.port.launch(start_of(), owner).stop(1.0)
        assert owner.events.empty()  # not from within the call
        assert (await owner.next("ended")).returncode is None
        assert lab.port.ledger.num_launches == 0


@in_loop
async def test_a_launch_takes_over_an_equal_instance_of_an_earlier_router(tmp_path: Path) -> None:
    running = start_of(revision="r1")
    async with instance_lab(tmp_path) as lab:
        early = await lab.instance(running.launch, state="ready")  # before its host
        early.send("log", level="info", text="said before it was wanted")
        host = await lab.host("a", (running,))
        owner, other, later = RecordingOwner(), RecordingOwner(), RecordingOwner()
        lab.port.launch(start_of(revision="r2"), other)
        assert (await host.expect("start"))["revision"] == "r2"
        link = lab.port.launch(start_of(revision="r1"), owner)
        assert owner.events.empty()  # not from within the call
        assert await owner.next("connected") is True
        assert (await owner.next("logged")).text == "said before it was wanted"
        assert (link.start, link.host) == (running, "a")
        lab.port.launch(start_of(revision="r1"), later)  # there is no second one
        assert (await host.expect("start"))["revision"] == "r1"
        link.stop(5.0)
        await early.expect("finalize")
        assert (await host.expect("stop"))["launch"] == running.launch
        assert lab.port.ledger.num_spares == 0


@in_loop
async def test_an_instance_that_has_said_something_wrong_before_it_was_wanted_has_to_connect_again(
    tmp_path: Path,
) -> None:
    running = start_of(revision="r1")
    async with instance_lab(tmp_path) as lab:
        early = await lab.instance(running.launch, state="ready")
        early.send("what")
        await lab.host("a", (running,))
        owner = RecordingOwner()
        lab.port.launch(start_of(revision="r1"), owner)
        assert await owner.next("connected") is True
        await owner.next("disconnected")
        await early.wait_closed()
        await lab.instance(running.launch, state="ready")
        assert await owner.next("connected") is True
        assert [host.name for host in lab.port.hosts] == ["a"]


@in_loop
async def test_a_launch_that_waits_for_a_host_takes_over_what_runs_there(tmp_path: Path) -> None:
    running = start_of(revision="r1")
    async with instance_lab(tmp_path) as lab:
        owner = RecordingOwner()
        link = lab.port.launch(start_of(revision="r1"), owner)
        await lab.host("a", (running,))
        assert link.start == running
        await lab.instance(running.launch, state="ready")
        assert await owner.next("connected") is True


@in_loop
async def test_nothing_is_started_until_all_hosts_may_have_shown_what_runs(tmp_path: Path) -> None:
    running = [start_of(name, revision="r1") for name in ("m_0_0", "m_0_1")]
    async with instance_lab(tmp_path, gather_s=0.3) as lab:
        links = [lab.port.launch(start_of(name, revision="r1"), RecordingOwner()) for name in ("m_0_0", "m_0_1", "new")]
        a = await lab.host("a", (running[0],))
        await lab.host("b", (running[1],))
        assert [link.start for link in links[:2]] == running
        assert [link.host for link in links] == ["a", "b", ""]
        assert (await a.expect("start"))["name"] == "new"


@in_loop
async def test_instances_that_no_one_wants_are_stopped(tmp_path: Path) -> None:
    unknown, unwanted = start_of(), start_of("m_0_1", revision="r1")
    async with instance_lab(tmp_path) as lab:
        host = await lab.host("a", (unknown, unwanted))
        assert (await host.expect("stop"))["launch"] == unknown.launch  # it has no revision
        assert lab.port.ledger.num_spares == 2
        late = await lab.instance(unknown.launch, state="ready")
        await late.expect("finalize")
        host.send("exited", launch=unknown.launch, returncode=0, reason="", log_tail="")
        await until(lambda: lab.port.ledger.num_spares == 1)
    async with instance_lab(tmp_path, spare_s=0.0) as lab:
        host = await lab.host("a", (unwanted,))
        assert (await host.expect("stop"))["launch"] == unwanted.launch
        again = await lab.host("a")
        assert lab.port.ledger.num_spares == 0
        link = lab.port.launch(unwanted, RecordingOwner())
        assert (await again.expect("start"))["launch"] == link.start.launch


@in_loop
async def test_a_host_that_comes_again_without_an_instance_has_lost_it(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        host = await lab.host()
        gone, stays = RecordingOwner(), RecordingOwner()
        lab.port.launch(start_of(), gone)
        link = lab.port.launch(start_of(), stays)
        await host.expect("start")
        await host.expect("start")
        again = await lab.host("a", (link.start,))
        await host.wait_closed()
        assert "a" in (await gone.next("ended")).reason
        link.stop(3.0)
        assert (await again.expect("stop"))["launch"] == link.start.launch
        assert stays.events.empty()
        assert len(lab.port.hosts) == 1


@in_loop
async def test_an_instance_ends_when_its_host_and_its_connection_stay_away(tmp_path: Path) -> None:
    async with instance_lab(tmp_path, away_s=0.0) as lab:
        link, owner, peer = await lab.connected_instance()
        [host] = lab.peers[:1]
        await host.close()
        await until(lambda: not lab.port.hosts)
        lab.port.check_absent()
        assert link.is_connected
        await peer.close()
        await owner.next("disconnected")
        lab.port.check_absent()
        assert "gone" in (await owner.next("ended")).reason


@in_loop
async def test_an_instance_that_connects_again_replaces_its_connection(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance()
        again = await lab.instance(link.start.launch, state="ready")
        await owner.next("disconnected")
        assert await owner.next("connected") is True
        await peer.wait_closed()
        link.finalize()
        await again.expect("finalize")
        assert owner.events.empty()


@in_loop
async def test_strangers_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with instance_lab(tmp_path) as lab:
        stranger = await host_peer(lab.path, "a", token="wrong")
        lab.peers.append(stranger)
        assert "token" in (await stranger.expect("refused"))["reason"]
        await stranger.wait_closed()
        instance = await Peer.connected(lab.path)
        lab.peers.append(instance)
        instance.send("hello", protocol=1, launch="x", secret="guess", pid=1, memory_id="", state="new")
        await instance.expect("refused")
        wrong = {"type": "hello", "protocol": 1, "launch": 1, "secret": "", "pid": 1, "memory_id": "", "state": "new"}
        for frame in (
            frame_start(wrong),
            b"\xff" * 12,
            b"\2\0\0\0" + bytes(8) + b"[]",
            b"\0\0\0\0" + (1 << 30).to_bytes(8, "little"),
        ):
            peer = await Peer.connected(lab.path)
            lab.peers.append(peer)
            peer.send_bytes(frame)
            await peer.wait_closed()
        assert not lab.port.hosts
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@in_loop
async def test_a_host_over_tcp_is_told_the_address_at_which_it_came(tmp_path: Path) -> None:
    sockets = listening_at("127.0.0.1", 0, 8)
    address = f"127.0.0.1:{sockets[0].getsockname()[1]}"
    async with instance_lab(tmp_path, sockets=sockets) as lab:
        peer = Peer(*await asyncio.open_connection(*address.split(":")))
        lab.peers.append(peer)
        near = await host_peer(lab.path, "near")
        lab.peers.append(near)
        assert (await near.expect("host_welcome"))["address"] == f"unix:{lab.path}"
        fields = {"token": TOKEN, "name": "far", "node_ip": "10.0.0.2", "memory_id": "x", "pid": 1, "launches": []}
        peer.send("host_hello", protocol=1, **fields)
        assert (await peer.expect("host_welcome"))["address"] == address


@in_loop
async def test_the_next_router_listens_at_the_same_path_and_port(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    sockets = listening_at("127.0.0.1", 0, 8)
    kept = [socket.fromfd(sock.fileno(), sock.family, sock.type) for sock in sockets]
    epochs = []
    with RegionPool(1 << 20) as pool:
        for listening in (sockets, kept):
            port = InstancePort(InstancePortConfig(TOKEN, path), pool, RecordingObserver(), listening)
            await port.start()
            peer = await host_peer(path, "a")
            epochs.append((await peer.expect("host_welcome"))["epoch"])
            reader, writer = await asyncio.open_connection(*listening[0].getsockname())
            await port.stop()
            await peer.wait_closed()
            await peer.close()
            assert await reader.read() == b""
            writer.close()
    assert epochs == sorted(set(epochs))


def test_what_processes_and_gpus_take_goes_over_the_wire_and_what_is_no_number_is_refused() -> None:
    report = UsageReport({"": ProcessUsage("", 1.5, 100)}, (GpuReading("GPU-7", 0.25, 1000, None, temperature_c=41),))
    head = json.loads(json.dumps(usage_head(report)))
    assert usage_of(head) == report
    head["gpus"][0]["of_a_later_version"] = 1
    assert usage_of(head) == report
    for broken in ({"utilization": "much"}, {"uuid": None}):
        with pytest.raises(FrameError, match="a bad usage"):
            usage_of({**head, "gpus": [{**head["gpus"][0], **broken}]})
    with pytest.raises(FrameError, match="a bad usage"):
        usage_of({"type": "usage", "processes": [["launch", 1.0]], "gpus": []})


@in_loop
async def test_frames_are_read_however_they_are_cut(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        _link, owner, _peer = await lab.connected_instance()
        launch = _link.start.launch
        piecewise = await instance_peer(lab.path, launch, "x", "ready")
        lab.peers.append(piecewise)
        await owner.next("disconnected")
        await owner.next("connected")
        head = b'{"type":"log","level":"info","text":"t"}'
        frame = len(head).to_bytes(4, "little") + bytes(8) + head
        for part in (frame[:5], frame[5:13], frame[13:] + frame + frame[:20], frame[20:]):
            piecewise.send_bytes(part)
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await owner.next("logged")).text == "t"
