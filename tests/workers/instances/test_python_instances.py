"""Instances of Python models on a real host: tensors in shared memory, and what deaths leave behind."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import ExecuteRequest, InitializeInstance, InstanceResponse
from slipstream.router.process.listening import listening_at
from slipstream.router.tensor_memory.shared_file import SHM
from slipstream.router.tensor_memory.stale_files import files_prefix, is_locked
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.tensor import Tensor
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.instances.instance_host import InstanceHost
from tests.support.router.in_loop import in_loop
from tests.support.router.instance_lab import Lab, RecordingOwner, instance_lab, start_of
from tests.support.router.scripted_instance import TOKEN
from tests.support.router.until import until
from tests.support.workers.host_program import host_program

LARGE = 4 << 20
MODEL = """
import os
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if array[0, 0] == 255:
                os.abort()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array[:, ::-1])]))
        return responses

    def finalize(self):
        print("finalized")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the model `m`."""
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    return version.parent


async def ready_instance(lab: Lab, folder: Path) -> tuple[InstanceLink, RecordingOwner]:
    owner = RecordingOwner()
    link = lab.port.launch(start_of(folder=folder), owner)
    await owner.next("connected")
    link.initialize(InitializeInstance({"model_name": "m"}, {"OUT": "UINT8"}))
    await owner.next("ready")
    return link, owner


async def reversed_by(link: InstanceLink, owner: RecordingOwner, number: int, data: bytes) -> InstanceResponse:
    request = InferRequest("m", inputs=[Tensor("IN", "UINT8", (1, len(data)), data)])
    link.execute(number, [ExecuteRequest(number, request)])
    response = (await owner.next("executed")).responses[0]
    assert isinstance(response, InstanceResponse)
    return response


@in_loop
async def test_large_tensors_go_through_shared_memory_and_all_of_it_returns(tmp_path: Path, folder: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        host = InstanceHost(InstanceHostConfig(f"unix:{lab.path}", TOKEN, "a", logs=str(tmp_path)))
        running = asyncio.create_task(host.run())
        link, owner = await ready_instance(lab, folder)
        for number, data in enumerate([b"abc", bytes(range(1, 251)) * (LARGE // 250)] * 3):
            response = await reversed_by(link, owner, number, data)
            assert bytes(response.outputs[0].view) == data[::-1]
            assert (response.release is not None) == (len(data) > 100)
            if response.release is not None:
                response.release()
        ledger = lab.port.ledger
        assert (ledger.num_requests, ledger.num_lent, lab.pool.usage.num_leases) == (0, 0, 0)
        host.stop(30.0)
        await owner.next("disconnected")
        end = await owner.next("ended")
        assert (end.returncode, end.log_tail) == (0, "finalized\n")
        await running
        assert not files_of(link)


@in_loop
async def test_between_machines_large_tensors_travel_in_the_frames(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.router.instances.instance_port.memory_id", lambda: "another machine")
    sockets = listening_at("127.0.0.1", 0, 8)
    host_and_port = "{}:{}".format(*sockets[0].getsockname())
    async with instance_lab(tmp_path, sockets) as lab:
        host = InstanceHost(InstanceHostConfig(host_and_port, TOKEN, "a", logs=str(tmp_path)))
        running = asyncio.create_task(host.run())
        link, owner = await ready_instance(lab, folder)
        for number, data in enumerate([b"abc", bytes(range(1, 251)) * (LARGE // 250)] * 2):
            response = await reversed_by(link, owner, number, data)
            assert bytes(response.outputs[0].view) == data[::-1]
            assert response.release is None
        assert not files_of(link)
        assert lab.pool.key == ""
        host.stop(30.0)
        await running


@in_loop
async def test_a_model_that_crashes_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        host = InstanceHost(InstanceHostConfig(f"unix:{lab.path}", TOKEN, "a", logs=str(tmp_path)))
        running = asyncio.create_task(host.run())
        link, owner = await ready_instance(lab, folder)
        kept = await reversed_by(link, owner, 1, b"x" * LARGE)
        link.execute(
            2, [ExecuteRequest(2, InferRequest("m", inputs=[Tensor("IN", "UINT8", (1, LARGE), b"\xff" * LARGE)]))]
        )
        await owner.next("disconnected")
        assert (await owner.next("ended")).returncode == -signal.SIGABRT
        assert bytes(kept.outputs[0].view) == b"x" * LARGE  # what was answered can still be sent
        assert kept.release is not None
        kept.release()
        assert not files_of(link)
        host.stop()
        await running


@in_loop
async def test_a_killed_host_takes_its_instances_along(tmp_path: Path, folder: Path) -> None:
    config = tmp_path / "host.json"
    async with instance_lab(tmp_path) as lab:
        config.write_text(json.dumps({"router": f"unix:{lab.path}", "token": TOKEN, "name": "a"}))
        async with host_program(config) as program:
            link, owner = await ready_instance(lab, folder)
            await reversed_by(link, owner, 1, b"x" * LARGE)
            assert [is_locked(file) for file in files_of(link)] == [True]
            program.kill()
            await program.wait()
        await owner.next("disconnected")
        await until(lambda: not lab.port.hosts)
        await lab.host("a")
        await owner.next("ended")
        [file] = files_of(link)
        assert not is_locked(file)  # so the next host removes it
        file.unlink()


def files_of(link: InstanceLink) -> list[Path]:
    return list(SHM.glob(f"{files_prefix(link.start.launch)}*"))
