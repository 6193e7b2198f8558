"""Instances on another host come over TLS where the configuration asks for it, and no other host gets in."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from socket import socket

import pytest

from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import ExecuteRequest, InitializeInstance
from slipstream.router.process.listening import close_all, listening_at
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.tensor import Tensor
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.router.tls.tls_files import TlsFileError
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.instances.instance_host import InstanceHost
from tests.support.router.authority import Authority
from tests.support.router.in_loop import in_loop
from tests.support.router.instance_lab import Lab, RecordingOwner, instance_lab, start_of
from tests.support.router.scripted_instance import TOKEN
from tests.support.router.until import until
from tests.support.workers.host_program import host_program

LARGE = 4 << 20
REFUSED_S = 0.5  # in which a host that is not to come has tried several times
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array[:, ::-1])]) for array in arrays]
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[socket]]:
    """Of a router that shares no memory with the host."""
    monkeypatch.setattr("slipstream.router.instances.instance_port.memory_id", lambda: "another machine")
    listening = listening_at("127.0.0.1", 0, 8)
    yield listening
    close_all(listening)


def config_for(sockets: Sequence[socket], tls: LinkTlsConfig) -> InstanceHostConfig:
    return InstanceHostConfig("{}:{}".format(*sockets[0].getsockname()), TOKEN, "a", router_tls=tls)


@asynccontextmanager
async def running_host(sockets: Sequence[socket], tls: LinkTlsConfig) -> AsyncIterator[InstanceHost]:
    """At the end it is stopped, and all its instances with it."""
    host = InstanceHost(config_for(sockets, tls))
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        host.stop(0.0)
        await task


async def joins(folder: Path, sockets: Sequence[socket], port: LinkTlsConfig, host: LinkTlsConfig) -> bool:
    """Whether a host with these files gets to a port with those, which takes no time if it does."""
    async with instance_lab(folder, [one.dup() for one in sockets], tls=port) as lab, running_host(sockets, host):
        try:
            async with asyncio.timeout(REFUSED_S):
                await lab.observer.hosts.get()
        except TimeoutError:
            return False
        return True


async def ready_instance(lab: Lab, folder: Path) -> tuple[InstanceLink, RecordingOwner]:
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    owner = RecordingOwner()
    link = lab.port.launch(start_of(folder=version.parent, revision="r1"), owner)
    assert await owner.next("connected") is False
    link.initialize(InitializeInstance({"model_name": "m"}, {"OUT": "UINT8"}))
    await owner.next("ready")
    return link, owner


async def check_reverses(link: InstanceLink, owner: RecordingOwner, data: bytes) -> None:
    tensor = Tensor("IN", "UINT8", (1, len(data)), data)
    link.execute(1, [ExecuteRequest(1, InferRequest("m", inputs=[tensor]))])
    (response,) = (await owner.next("executed")).responses
    assert bytes(response.outputs[0].view) == data[::-1]


@pytest.mark.parametrize("mutual", [True, False])
def test_an_instance_executes_large_requests_through_the_encrypted_connection_of_its_host(
    authority: Authority, sockets: Sequence[socket], tmp_path: Path, mutual: bool
) -> None:
    tls = replace(authority.issue("host"), mutual=mutual)

    @in_loop
    async def main() -> None:
        async with instance_lab(tmp_path, sockets, tls=tls) as lab, running_host(sockets, tls):
            link, owner = await ready_instance(lab, tmp_path)
            for data in (b"abc", bytes(range(1, 251)) * (LARGE // 250)) * 2:
                await check_reverses(link, owner, data)
            link.stop(30.0)
            name, end = await owner.events.get()
            if name == "disconnected":  # it goes through the host, whose report of the end may be faster
                name, end = await owner.events.get()
            assert (name, end.returncode) == ("ended", 0)

    main()


def test_an_instance_outlives_a_router_whose_certificate_is_another_one_then(
    authority: Authority, sockets: Sequence[socket], tmp_path: Path
) -> None:
    tls = authority.issue("renewed")

    @in_loop
    async def main() -> None:
        async with running_host(sockets, tls) as host:
            async with instance_lab(tmp_path, [one.dup() for one in sockets], tls=tls) as lab:
                link, _ = await ready_instance(lab, tmp_path)
            await until(lambda: not host.is_connected.is_set())
            authority.issue("renewed")
            async with instance_lab(tmp_path, sockets, tls=tls) as lab:
                owner = RecordingOwner()
                same = lab.port.launch(replace(link.start, launch="another"), owner)
                assert await owner.next("connected") is True
                assert same.start.launch == link.start.launch
                await check_reverses(same, owner, b"abc")

    main()


def test_a_host_without_a_good_certificate_does_not_get_in(
    authority: Authority, sockets: Sequence[socket], tmp_path: Path
) -> None:
    port = authority.issue("host")
    stranger = replace(Authority(tmp_path / "other").issue("stranger"), ca_file=str(authority.cert))

    @in_loop
    async def main() -> None:
        assert await joins(tmp_path, sockets, port, authority.issue("another"))
        assert not await joins(tmp_path, sockets, port, LinkTlsConfig())
        assert not await joins(tmp_path, sockets, port, replace(port, mutual=False))
        assert not await joins(tmp_path, sockets, port, stranger)
        assert not await joins(tmp_path, sockets, port, authority.issue("late", days=-1))

    main()


def test_a_host_does_not_trust_another_router_and_says_why_once(
    authority: Authority, sockets: Sequence[socket], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = authority.issue("host")

    @in_loop
    async def main() -> None:
        for port, reason in (
            (Authority(tmp_path / "other").issue("stranger"), "certificate verify failed: self-signed"),
            (authority.issue("late", days=-1), "certificate has expired"),
            (authority.issue("elsewhere", "DNS:router.example"), "not valid for '127.0.0.1'"),
        ):
            caplog.clear()
            assert not await joins(tmp_path, sockets, replace(port, mutual=False), host)
            warnings = [one.getMessage() for one in caplog.records if "instance_host" in one.name]
            assert ["no connection to the router" in one and reason in one for one in warnings] == [True]

    caplog.set_level(logging.WARNING)
    main()


def test_a_host_over_a_unix_socket_needs_no_certificate(authority: Authority, tmp_path: Path) -> None:
    @in_loop
    async def main() -> None:
        tls = authority.issue("host")
        async with instance_lab(tmp_path, tls=tls) as lab:
            host = InstanceHost(InstanceHostConfig(f"unix:{lab.path}", TOKEN, "a", router_tls=tls))
            running = asyncio.create_task(host.run())
            await lab.observer.hosts.get()
            host.stop()
            await running

    main()


def test_files_that_cannot_be_used_end_a_host_with_their_key(
    authority: Authority, sockets: Sequence[socket], tmp_path: Path
) -> None:
    bad = replace(authority.issue("host"), ca_file=str(tmp_path / "none.pem"))
    path = tmp_path / "host.json"
    path.write_text(json.dumps(asdict(config_for(sockets, bad))))

    @in_loop
    async def main() -> None:
        async with host_program(path) as program:
            _, said = await program.communicate()
        assert program.returncode == 1
        assert b"error: a: ca_file: " in said
        assert b"none.pem: No such file" in said
        with pytest.raises(TlsFileError, match=r"ca_file: .*none.pem: No such file"):
            async with instance_lab(tmp_path, sockets, tls=bad):
                pass

    main()
