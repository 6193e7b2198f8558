"""What an instance is told, and what its owner hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.router.instances.messages import ExecuteRequest, InitializeInstance, InstanceEnd, InstanceResponse
from slipstream.router.tensor_memory.shared_file import SharedFile, map_file
from slipstream.router.tensor_memory.stale_files import files_prefix
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, RequestedOutput, SequenceFlags
from slipstream.router.tensors.tensor import RegionSlice, Tensor
from tests.support.router.in_loop import in_loop
from tests.support.router.instance_lab import instance_lab

LARGE = 100_000  # bytes: beyond what travels in a frame
ROW = bytes(range(16))


def request_of(*inputs: Tensor, **fields: object) -> InferRequest:
    return InferRequest("m", inputs=list(inputs), **fields)  # type: ignore[arg-type]


def tensor(data: bytes | memoryview | RegionSlice, name: str = "IN") -> Tensor:
    num_bytes = data.num_bytes if isinstance(data, RegionSlice) else len(data)
    return Tensor(name, "UINT8", (1, num_bytes), data)


def is_mapped(key: str) -> bool:
    """In this process."""
    return key in Path("/proc/self/maps").read_text()


def wire_response(*outputs: object, error: object = None) -> dict[str, object]:
    return {"outputs": list(outputs), "error": error, "parameters": None}


def executed(batch: int, *responses: object, **fields: object) -> dict[str, object]:
    return {
        "type": "executed",
        "batch": batch,
        "responses": list(responses),
        "error": None,
        "compute_ns": 3,
        "input_ns": 1,
        "output_ns": 2,
        **fields,
    }


@in_loop
async def test_an_instance_is_completed_initialised_and_ready(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance(shares_memory=True)
        link.complete_config(b'{"name": "m", "max_batch_size": 8}')
        assert (await peer.expect("complete_config"))["config"] == {"name": "m", "max_batch_size": 8}
        peer.send("completed", config={"name": "m"})
        assert await owner.next("completed") == {"name": "m"}
        link.initialize(InitializeInstance({"model_name": "m"}, {"OUT": "FP32"}, is_decoupled=True))
        head = await peer.expect("initialize")
        assert head["args"] == {"model_name": "m"}
        assert head["outputs"] == {"OUT": "FP32"}
        assert (head["is_decoupled"], head["shares_memory"], head["inline_bytes"]) == (True, True, 65_536)
        peer.send("ready")
        await owner.next("ready")


@in_loop
async def test_small_tensors_travel_in_the_frame_both_ways(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance()
        request = request_of(
            tensor(b"abc", "A"),
            tensor(memoryview(ROW), "B"),
            id="7",
            sequence=SequenceFlags(5, is_start=True),
            timeout_us=9,
            priority=2,
            parameters={"p": 1},
            requested=(RequestedOutput("OUT"),),
        )
        link.execute(3, [ExecuteRequest(11, request, (tensor(b"x", "START"),))])
        head = await peer.expect("execute")
        assert head["batch"] == 3
        [sent] = head["requests"]
        assert sent == {
            "n": 11,
            "id": "7",
            "correlation_id": 5,
            "flags": 1,
            "timeout_us": 9,
            "priority": 2,
            "parameters": {"p": 1},
            "outputs": ["OUT"],
            "inputs": [
                ["A", "UINT8", [1, 3], [0, 3]],
                ["B", "UINT8", [1, 16], [8, 16]],
                ["START", "UINT8", [1, 1], [24, 1]],
            ],
        }
        assert head["payload"] == b"abc\0\0\0\0\0" + ROW + b"x"
        assert lab.port.ledger.num_requests == 1
        peer.send_head(executed(3, wire_response(["OUT", "FP32", [1, 1], [8, 4]])), b"........1234")
        result = await owner.next("executed")
        assert result.responses[0].outputs == [Tensor("OUT", "FP32", (1, 1), b"1234")]
        assert result.responses[0].release is None
        assert (result.batch, result.compute_ns, result.input_ns, result.output_ns) == (3, 3, 1, 2)
        assert lab.port.ledger.num_requests == 0


@in_loop
async def test_a_large_input_is_referred_to_where_memory_is_shared(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance(shares_memory=True)
        lease = lab.pool.allocate(LARGE)
        lease.view[:] = b"r" * LARGE
        copied = b"c" * LARGE
        link.execute(1, [ExecuteRequest(1, request_of(tensor(lease.slice, "A"), tensor(copied, "B")))])
        [sent] = (await peer.expect("execute"))["requests"]
        assert sent["inputs"][0][3] == [lab.pool.key, lease.offset, LARGE]
        key, offset, num_bytes = sent["inputs"][1][3]
        assert bytes(map_file(key).view[offset : offset + num_bytes]) == copied
        assert lab.pool.usage.num_leases == 2
        peer.send_head(executed(1, wire_response()))
        await owner.next("executed")
        assert lab.pool.usage.num_leases == 1  # the caller's own
        lease.release()


@in_loop
async def test_a_large_tensor_travels_in_the_frame_where_memory_is_not_shared(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance()
        lease = lab.pool.allocate(LARGE)
        lease.view[:] = b"r" * LARGE
        link.execute(1, [ExecuteRequest(1, request_of(tensor(lease.slice)))])
        head = await peer.expect("execute")
        assert head["payload"] == b"r" * LARGE
        large = b"0123456789" * (LARGE // 10)
        peer.send_head(executed(1, wire_response(["OUT", "UINT8", [LARGE], [0, LARGE]])), large)
        result = await owner.next("executed")
        assert bytes(result.responses[0].outputs[0].view) == large
        lease.release()


@in_loop
async def test_an_output_in_the_instances_memory_is_mapped_and_given_back(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance(shares_memory=True)
        key = f"{files_prefix(link.start.launch)}1"
        file = SharedFile(key, 2 * LARGE)
        try:
            file.region.view[LARGE : 2 * LARGE] = b"o" * LARGE
            link.execute(1, [ExecuteRequest(1, request_of(tensor(ROW)))])
            await peer.expect("execute")
            peer.send_head(executed(1, wire_response(["OUT", "UINT8", [LARGE], [key, LARGE, LARGE]])))
            response = (await owner.next("executed")).responses[0]
            assert bytes(response.outputs[0].view) == b"o" * LARGE
            response.release()
            assert (await peer.expect("release"))["places"] == [[key, LARGE]]
        finally:
            file.remove()


@in_loop
async def test_the_memory_of_a_process_that_has_ended_is_mapped_no_longer(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance(shares_memory=True)
        key = f"{files_prefix(link.start.launch)}1"
        file = SharedFile(key, LARGE)
        try:
            del file.region
            link.execute(1, [ExecuteRequest(1, request_of(tensor(ROW)))])
            await peer.expect("execute")
            peer.send_head(executed(1, wire_response(["OUT", "UINT8", [LARGE], [key, 0, LARGE]])))
            await owner.next("executed")
            assert is_mapped(key)
            link.end(InstanceEnd("killed", -9))
            await owner.next("ended")
            assert not is_mapped(key)
        finally:
            file.remove()


@in_loop
async def test_an_output_lies_in_the_clients_memory_only_where_it_was_asked_for(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance(shares_memory=True)
        client = SharedFile("client-of-the-tests", LARGE)
        try:
            into = RegionSlice(client.region, 64, 32)
            request = request_of(tensor(ROW), requested=(RequestedOutput("OUT", into=into),))
            link.execute(1, [ExecuteRequest(1, request)])
            [sent] = (await peer.expect("execute"))["requests"]
            assert sent["into"] == {"OUT": ["client-of-the-tests", 64, 32]}
            place = ["client-of-the-tests", 64, 16]
            peer.send_head(executed(1, wire_response(["OUT", "UINT8", [16], place])))
            response = (await owner.next("executed")).responses[0]
            assert response.outputs[0].data == RegionSlice(client.region, 64, 16)
            assert response.release is None
            link.execute(2, [ExecuteRequest(2, request)])
            await peer.expect("execute")
            peer.send_head(executed(2, wire_response(["OUT", "UINT8", [16], ["client-of-the-tests", 0, 16]])))
            await owner.next("disconnected")
        finally:
            client.remove()


@in_loop
async def test_responses_of_a_sender_come_at_any_time_and_end_with_the_last(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance()
        link.execute(1, [ExecuteRequest(1, request_of(tensor(ROW))), ExecuteRequest(2, request_of(tensor(ROW)))])
        await peer.expect("execute")
        peer.send("response", n=2, response=wire_response(error=["NOT_FOUND", "no"]), final=False)
        responded = await owner.next("responded")
        assert (responded.n, responded.is_final) == (2, False)
        assert responded.response.error.code is InferErrorCode.NOT_FOUND
        assert responded.response.error.reason is FailureReason.BACKEND
        peer.send_head(executed(1))
        await owner.next("executed")
        assert lab.port.ledger.num_requests == 2
        peer.send("response", n=2, response=None, final=True)
        assert (await owner.next("responded")).response is None
        link.cancel(1)
        link.cancel(2)  # has ended: not sent
        assert (await peer.expect("cancel"))["n"] == 1
        peer.send("response", n=1, response=wire_response(), final=True)
        assert (await owner.next("responded")).is_final
        peer.send("response", n=1, response=wire_response(), final=True)  # it has ended: not heard
        peer.send("log", level="warn", text="t", file="f", line=3)
        assert (await owner.next("logged")).text == "t"
        assert lab.port.ledger.num_requests == 0


@in_loop
async def test_a_place_without_a_request_and_rescheduled_requests_end_with_the_batch(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance()
        null = ExecuteRequest(1, None, (tensor(b"\0", "START"),))
        link.execute(1, [null, ExecuteRequest(2, request_of(tensor(ROW)))])
        head = await peer.expect("execute")
        assert head["requests"][0]["is_null"] is True
        assert head["requests"][0]["inputs"] == [["START", "UINT8", [1, 1], [0, 1]]]
        peer.send_head(executed(1, None, None, rescheduled=[2]))
        assert (await owner.next("executed")).rescheduled == [2]
        assert lab.port.ledger.num_requests == 0


@in_loop
async def test_a_call_borrows_the_response_until_the_instance_has_read_it(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance(shares_memory=True)
        request = {
            "n": 0,
            "id": "c",
            "correlation_id": "s",
            "flags": 3,
            "timeout_us": 0,
            "priority": 0,
            "parameters": {"a": True},
            "outputs": None,
            "inputs": [["IN", "UINT8", [16], [0, 16]]],
            "model": "other",
            "model_version": -1,
            "decoupled": True,
            "parent": 4,
        }
        peer.send("call", ROW, call=8, request=request)
        call = await owner.next("called")
        assert (call.call, call.is_decoupled, call.parent) == (8, True, 4)
        assert (call.request.model, call.request.model_version) == ("other", "")
        assert call.request.sequence == SequenceFlags("s", is_start=True, is_end=True)
        assert bytes(call.request.inputs[0].view) == ROW
        lease = lab.pool.allocate(LARGE)
        other = InstanceResponse([tensor(lease.slice, "OUT")], release=lease.release)
        link.call_response(8, other, is_final=False)
        small = InstanceResponse([], InferError("no", InferErrorCode.UNAVAILABLE))
        link.call_response(8, small, is_final=True)
        first, last = await peer.expect("call_response"), await peer.expect("call_response")
        key, offset, num_bytes = first["response"]["outputs"][0][3]
        assert (key, num_bytes, first["final"]) == (lab.pool.key, LARGE, False)
        assert (last["response"]["error"], last["final"]) == (["UNAVAILABLE", "no"], True)
        assert lab.port.ledger.num_lent == 1
        peer.send("release", places=[[key, offset], ["unknown", 0]])
        peer.send("call_cancel", call=8)
        await owner.next("call_cancelled")
        assert (lab.port.ledger.num_lent, lab.pool.usage.num_leases) == (0, 0)


@in_loop
async def test_the_repository_answers_a_control_call_once(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance()
        files = {"1/model.py": [0, 16]}
        peer.send("control", ROW, call=1, action="load", model="x", model_version="", config="{}", files=files)
        call = await owner.next("controlled")
        assert (call.action, call.model, call.config_json, call.files) == ("load", "x", "{}", {"1/model.py": ROW})
        link.control_result(1, None, True)
        link.control_result(1, "again")
        link.finalize()
        assert (await peer.expect("control_result"))["value"] is True
        await peer.expect("finalize")


@in_loop
async def test_a_lost_connection_gives_back_all_that_was_under_way(tmp_path: Path) -> None:
    async with instance_lab(tmp_path) as lab:
        link, owner, peer = await lab.connected_instance(shares_memory=True)
        link.execute(1, [ExecuteRequest(1, request_of(tensor(b"c" * LARGE)))])
        await peer.expect("execute")
        assert lab.pool.usage.num_leases == 1
        await peer.close()
        await owner.next("disconnected")
        assert (lab.pool.usage.num_leases, lab.port.ledger.num_requests) == (0, 0)
        released: list[int] = []
        link.call_response(1, InstanceResponse([], release=lambda: released.append(1)), is_final=True)
        assert released == [1]
        link.execute(2, [ExecuteRequest(2, request_of(tensor(ROW)))])  # is dropped
        assert lab.port.ledger.num_requests == 0


@pytest.mark.parametrize(
    "head",
    [
        {"type": "what"},
        {"type": "executed", "batch": 9, "responses": [], "compute_ns": 0, "input_ns": 0, "output_ns": 0},
        {"type": "response", "n": 1},
        {"type": "release", "places": [1]},
        {"type": "call", "call": 1, "request": {"flags": 0}},
        {"type": "response", "n": 1, "response": wire_response(["O", "UINT8", [1], [0, 1]]), "final": True},
        {"type": "response", "n": 1, "response": wire_response(["O", "UINT8", [1], ["../x", 0, 1]]), "final": True},
    ],
)
@in_loop
async def test_a_wrong_message_ends_the_connection(tmp_path: Path, head: dict[str, object]) -> None:
    async with instance_lab(tmp_path) as lab:
        _link, owner, peer = await lab.connected_instance()
        peer.send_head(head)
        await owner.next("disconnected")
        await peer.wait_closed()
