"""A real host with processes that answer without a model, and a real port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import ExecuteRequest, InitializeInstance, InstanceEnd, StartInstance
from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.tensor import Tensor
from slipstream.workers.instances.host_config import InstanceHostConfig, RouterAddress, router_address
from slipstream.workers.instances.instance_host import InstanceHost
from slipstream.workers.instances.instance_table import InstanceTable
from slipstream.workers.instances.launch_command import InstanceContact, LaunchCommand
from slipstream.workers.instances.router_session import HostRefused
from tests.support.router.fake_nvml import NOT_SUPPORTED, FakeGpu, FakeNvml
from tests.support.router.in_loop import in_loop
from tests.support.router.instance_lab import Lab, RecordingOwner, instance_lab, start_of
from tests.support.router.scripted_instance import TIMEOUT_S, TOKEN
from tests.support.router.until import until
from tests.support.workers import echo_instance
from tests.support.workers.host_program import host_program

REQUEST = ExecuteRequest(1, InferRequest("m", inputs=[Tensor("IN", "UINT8", (3,), b"abc")]))


class EchoLauncher:
    """`behaviour` is that of all instances."""

    def __init__(self, behaviour: str = "", file: Path | None = None) -> None:
        self.behaviour = behaviour
        self._file = file

    def __call__(self, start: StartInstance, contact: InstanceContact) -> LaunchCommand:
        if self.behaviour == "no interpreter":
            raise ValueError("there is no Python 2.3")
        if self.behaviour == "a fault of ours":
            raise KeyError("what was forgotten")
        path = contact.address.removeprefix("unix:")
        arguments = [path, contact.launch, contact.secret, self.behaviour, str(self._file or "")]
        return LaunchCommand([sys.executable, echo_instance.__file__, *arguments], dict(os.environ))


@asynccontextmanager
async def running_host(path: str, launcher: EchoLauncher, logs: str = "") -> AsyncIterator[InstanceHost]:
    """At the end it is stopped, and all its instances with it."""
    host = InstanceHost(InstanceHostConfig(f"unix:{path}", TOKEN, "a", logs=logs), launcher)
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        host.stop(0.0)
        await task
        assert host.num_instances == 0


async def ready_instance(lab: Lab, name: str = "m_0_0") -> tuple[InstanceLink, RecordingOwner]:
    owner = RecordingOwner()
    link = lab.port.launch(start_of(name, revision="r1"), owner)
    assert await owner.next("connected") is False
    link.initialize(InitializeInstance({}, {}))
    await owner.next("ready")
    return link, owner


def files_of(link: InstanceLink) -> list[Path]:
    return list(Path("/dev/shm").glob(f"slipstream-{link.start.launch}-*"))


@in_loop
async def test_an_instance_runs_executes_and_finalizes(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher(), str(logs)) as host:
        link, owner = await ready_instance(lab)
        assert host.is_connected.is_set()
        assert host.num_instances == 1
        link.execute(1, [REQUEST])
        assert (await owner.next("executed")).responses[0].outputs[0].data == b"abc"
        assert files_of(link)
        link.stop(30.0)
        await owner.next("disconnected")
        end = await owner.next("ended")
        assert (end.returncode, end.log_tail) == (0, "finalized\n")
        assert "exit code 0" in end.reason
        assert not files_of(link)
        assert (host.num_instances, lab.port.ledger.num_launches) == (0, 0)


@in_loop
async def test_a_host_says_what_it_and_each_instance_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(FakeGpu("GPU-6"), FakeGpu("GPU-7", fails={"nvmlDeviceGetPowerUsage": NOT_SUPPORTED}))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("slipstream.router.instances.instance_port.USAGE_S", 0.05)
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher()):
        link, owner = await ready_instance(lab)
        await until(lambda: bool(lab.port.usage[0].instances))
        [host] = lab.port.usage
        assert host.name == "a"
        assert host.own is not None
        assert host.own.cpu_seconds > 0
        [(start, usage)] = host.instances
        assert start is link.start
        assert usage.cpu_seconds > 0
        assert usage.resident_memory_bytes > 1_000_000
        assert host.gpus[1] == GpuReading("GPU-7", 0.25, 1000, 10, None, 70.0, 0.0, 41)
        assert [gpu.uuid for gpu in host.gpus] == ["GPU-6", "GPU-7"]
        link.stop(30.0)
        await owner.next("disconnected")
        await owner.next("ended")
        assert lab.port.usage[0].instances == ()
    assert nvml.num_open == 0


@in_loop
async def test_a_router_that_wants_no_usage_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.router.instances.instance_port.USAGE_S", 0.0)
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher()):
        link, owner = await ready_instance(lab)
        link.execute(1, [REQUEST])  # by a connection of its own; the host has had time to speak
        await owner.next("executed")
        assert lab.port.usage[0].own is None
        link.stop(30.0)
        await owner.next("disconnected")
        await owner.next("ended")


@in_loop
async def test_a_process_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher("die"), str(tmp_path)):
        link, owner = await ready_instance(lab)
        link.execute(1, [REQUEST])
        await owner.next("disconnected")
        end = await owner.next("ended")
        assert (end.returncode, end.log_tail) == (-signal.SIGKILL, "about to die\n")
        assert "m_0_0 was killed by SIGKILL" in end.reason
        assert not files_of(link)


@in_loop
async def test_instances_of_one_name_share_a_log_that_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.workers.instances.instance_log.MAX_LOG_BYTES", 30)
    log, old = tmp_path / "m_0_0-version-1.log", tmp_path / "m_0_0-version-1.old.log"
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher("fail"), str(tmp_path)):
        for expected in (1, 2, 3, 1):
            owner = RecordingOwner()
            lab.port.launch(start_of(), owner)
            assert (await owner.next("ended")).log_tail == "no such model\n"  # of this process alone
            assert log.read_text() == "no such model\n" * expected
        assert old.read_text() == ("no such model\n" * 3)[-30:]


@in_loop
async def test_the_log_of_an_instance_that_runs_for_long_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.workers.instances.instance_log.MAX_LOG_BYTES", 30)
    monkeypatch.setattr("slipstream.workers.instances.instance_table.CHECK_LOGS_S", 0.05)
    log = tmp_path / "m_0_0-version-1.log"
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher(), str(tmp_path)):
        link, owner = await ready_instance(lab)
        with log.open("a") as output:
            output.write("x" * 100)
        await until(lambda: log.stat().st_size == 0)
        link.stop(30.0)
        await owner.next("disconnected")
        assert (await owner.next("ended")).log_tail == "finalized\n"
        assert (tmp_path / "m_0_0-version-1.old.log").read_text() == "x" * 30


@pytest.mark.parametrize(
    ("behaviour", "returncode", "text"),
    [
        ("no interpreter", None, "there is no Python 2.3"),
        ("a fault of ours", None, "what was forgotten"),
        ("fail", 1, "no such model"),
    ],
)
@in_loop
async def test_an_instance_that_does_not_start_has_ended(
    tmp_path: Path, behaviour: str, returncode: int | None, text: str
) -> None:
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher(behaviour), str(tmp_path)):
        owner = RecordingOwner()
        lab.port.launch(start_of(), owner)
        end = await owner.next("ended")
        assert end.returncode == returncode
        assert text in end.reason + end.log_tail


@in_loop
async def test_one_that_does_not_end_is_killed_and_its_children_with_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher("parent", child)):
        link, owner = await ready_instance(lab)
        link.stop(30.0)
        await owner.next("disconnected")
        assert (await owner.next("ended")).returncode == 0
        await until(lambda: not is_running(int(child.read_text())))
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher("stubborn")):
        link, owner = await ready_instance(lab)
        link.stop(0.05)
        await owner.next("disconnected")
        assert (await owner.next("ended")).returncode == -signal.SIGKILL


@in_loop
async def test_an_instance_that_is_stopped_at_once_has_ended() -> None:
    ends: list[InstanceEnd] = []
    table = InstanceTable(EchoLauncher(), None, lambda _, end: ends.append(end))
    table.start(start_of(), "", "unix:/nowhere")
    table.stop_all(0.0)  # its task has had no step
    async with asyncio.timeout(TIMEOUT_S):
        await table.wait_empty()
    assert [end.reason for end in ends] == ["m_0_0 was stopped before it was started"]


@in_loop
async def test_the_log_of_an_instance_stays_in_its_folder(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    async with instance_lab(tmp_path) as lab, running_host(lab.path, EchoLauncher("fail"), str(logs)):
        owner = RecordingOwner()
        lab.port.launch(start_of("../a/b"), owner)
        assert (await owner.next("ended")).log_tail == "no such model\n"
    assert [path.name for path in logs.iterdir()] == ["..%2Fa%2Fb-version-1.log"]


@in_loop
async def test_a_host_whose_router_does_not_answer_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.workers.instances.router_session.CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(listener.getsockname())  # and now the queue is full
        port = listener.getsockname()[1]
        host = InstanceHost(InstanceHostConfig(f"127.0.0.1:{port}", TOKEN), EchoLauncher())
        running = asyncio.create_task(host.run())
        await asyncio.sleep(0.05)
        host.stop()
        async with asyncio.timeout(TIMEOUT_S):
            await running


@in_loop
async def test_instances_outlive_a_router_and_the_next_one_hears_what_has_ended(tmp_path: Path) -> None:
    path = str(tmp_path / "instances.sock")
    async with running_host(path, EchoLauncher()) as host:
        async with instance_lab(tmp_path) as lab:
            kept, _ = await ready_instance(lab)
            gone, _ = await ready_instance(lab, "m_0_1")
            pid = process_of(gone)
        await until(lambda: not host.is_connected.is_set())
        os.kill(pid, signal.SIGKILL)
        await until(lambda: host.num_instances == 1)
        async with instance_lab(tmp_path) as lab:
            owner = RecordingOwner()
            link = lab.port.launch(start_of(revision="r1"), owner)
            assert await owner.next("connected") is True
            assert link.start.launch == kept.start.launch
            await until(lambda: lab.port.ledger.num_spares == 0)  # the other one has ended
            assert host.num_instances == 1


@in_loop
async def test_a_host_finds_a_router_at_once_that_was_away_for_long(tmp_path: Path) -> None:
    async with running_host(str(tmp_path / "instances.sock"), EchoLauncher()) as host:
        await asyncio.sleep(1.6)
        async with instance_lab(tmp_path), asyncio.timeout(0.6):
            await host.is_connected.wait()


@in_loop
async def test_a_wrong_token_ends_the_host(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        host = InstanceHost(InstanceHostConfig(f"unix:{lab.path}", "wrong", "a"), EchoLauncher())
        with pytest.raises(HostRefused, match="token or secret is wrong"):
            await host.run()


@in_loop
async def test_the_plain_program_ends_with_a_signal_and_says_what_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "host.json"
    async with instance_lab(tmp_path) as lab:
        config.write_text(json.dumps({"router": f"unix:{lab.path}", "token": TOKEN, "name": "plain"}))
        async with host_program(config) as program:
            await until(lambda: [host.name for host in lab.port.hosts] == ["plain"])
            program.send_signal(signal.SIGTERM)
            assert await program.wait() == 0
    config.write_text(json.dumps({"router": "nowhere", "token": TOKEN}))
    async with host_program(config) as program:
        _, text = await program.communicate()
        assert program.returncode == 2
    assert b"router must be unix:PATH or HOST:PORT, got 'nowhere'" in text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/a b", RouterAddress(path="/a b")),
        ("10.0.0.1:80", RouterAddress(host="10.0.0.1", port=80)),
        ("[::1]:80", RouterAddress(host="::1", port=80)),
    ],
)
def test_addresses_of_routers(text: str, address: RouterAddress) -> None:
    assert router_address(text) == address


@pytest.mark.parametrize("text", ["", "unix:", "host", ":80", "host:x", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="router must be unix:PATH or HOST:PORT"):
        InstanceHostConfig(text, TOKEN)


def process_of(link: InstanceLink) -> int:
    """The process id of an instance of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        command = (folder / "cmdline").read_bytes() if (folder / "cmdline").exists() else b""
        if link.start.launch.encode() in command:
            return int(folder.name)
    raise AssertionError("the instance does not run")


def is_running(pid: int) -> bool:
    """Whether it lives; a process that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
