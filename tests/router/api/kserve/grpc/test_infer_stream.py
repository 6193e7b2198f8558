"""Streams of requests and responses, over real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from slipstream.router.api.kserve.grpc.inference import infer_stream
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from tests.support.router.grpc_lab import VECTOR, access_with_keys, grpc_lab, infer_request, refused, repeat_request
from tests.support.router.in_loop import in_loop
from tests.support.router.until import until

STRICT = [("triton_grpc_error", "true")]


def finals(responses: list[pb.ModelStreamInferResponse]) -> list[bool]:
    return [each.infer_response.parameters["triton_final_response"].bool_param for each in responses]


@in_loop
async def test_a_decoupled_model_answers_with_many_responses_and_no_final_one() -> None:
    async with grpc_lab() as lab:
        responses = await lab.all_responses(repeat_request(3, 4, request_id="r"))
    values = [np.frombuffer(each.infer_response.raw_output_contents[0], np.int32)[0] for each in responses]
    assert values == [3, 4]
    assert [each.infer_response.id for each in responses] == ["r", "r"]
    assert finals(responses) == [False, False]


@in_loop
async def test_the_end_is_said_to_those_who_ask_for_it() -> None:
    async with grpc_lab() as lab:
        request = repeat_request(3, request_id="r", triton_enable_empty_final_response=True)
        responses = await lab.all_responses(request)
    assert finals(responses) == [False, True]
    last = responses[-1].infer_response
    assert (last.model_name, last.id, list(last.outputs)) == ("repeat", "r", [])


@in_loop
async def test_the_response_of_another_model_is_its_final_one() -> None:
    async with grpc_lab() as lab:
        assert finals(await lab.all_responses(infer_request(), infer_request())) == [True, True]


@in_loop
async def test_an_error_does_not_end_the_stream() -> None:
    async with grpc_lab() as lab:
        lab.service.answers["kept"] = lambda each: each.fail(InferError("broken", InferErrorCode.INTERNAL))
        responses = await lab.all_responses(
            infer_request("nope", request_id="1"),
            infer_request(inputs=["A"], request_id="2"),
            infer_request("kept", request_id="3"),
            infer_request(request_id="4"),
        )
    assert [each.infer_response.id for each in responses] == ["1", "2", "3", "4"]
    texts = [each.error_message for each in responses]
    assert texts[0] == "Request for unknown model: 'nope' is not found"
    assert "expected 2 inputs but got 1 inputs" in texts[1]
    assert texts[2:] == ["broken", ""]
    assert (responses[0].infer_response.model_name, responses[2].infer_response.model_name) == ("", "kept")
    assert responses[2].infer_response.parameters["triton_final_response"].bool_param


@in_loop
async def test_with_strict_errors_a_failed_request_ends_the_stream_with_its_status() -> None:
    async with grpc_lab() as lab:
        lab.service.answers["kept"] = lambda each: each.fail(InferError("broken", InferErrorCode.UNAVAILABLE))
        stream = lab.stream(STRICT)
        await stream.write(infer_request("nope"))  # it was not accepted, which is no failure
        assert (await stream.read()).error_message
        await stream.write(infer_request("kept"))
        async with refused(grpc.StatusCode.UNAVAILABLE, "broken"):
            await stream.read()


@in_loop
async def test_an_error_of_a_decoupled_model_may_be_followed_by_responses() -> None:
    def answer(submission: object) -> None:
        error = InferError("only this one", InferErrorCode.INTERNAL)
        submission.respond({}, is_final=False, error=error)  # type: ignore[attr-defined]
        submission.respond({"OUT": np.array([5], np.int32)})  # type: ignore[attr-defined]

    async with grpc_lab() as lab:
        lab.service.answers["repeat"] = answer
        responses = await lab.all_responses(repeat_request(1))
    assert [each.error_message for each in responses] == ["only this one", ""]
    assert finals(responses) == [False, True]


@in_loop
async def test_responses_of_models_that_are_not_decoupled_keep_the_order_of_the_requests() -> None:
    async with grpc_lab() as lab:
        stream = lab.stream()
        await stream.write(infer_request("kept", request_id="1"))
        await stream.write(infer_request("kept", request_id="2"))
        await stream.write(repeat_request(9, request_id="3"))
        assert (await stream.read()).infer_response.id == "3"  # which waits for none of them
        await until(lambda: len(lab.service.submitted) == 3)
        first, second, _ = lab.service.submitted
        second.respond({"SUM": VECTOR[None]})
        first.respond({"SUM": VECTOR[None]})
        assert [(await stream.read()).infer_response.id for _ in range(2)] == ["1", "2"]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


@in_loop
async def test_requests_of_several_decoupled_models_are_served_at_once() -> None:
    async with grpc_lab() as lab:
        stream = lab.stream()
        await stream.write(repeat_request(1, model="kept_repeat", request_id="slow"))
        await stream.write(repeat_request(2, request_id="fast"))
        assert (await stream.read()).infer_response.id == "fast"
        [slow] = lab.service.running
        slow.respond({"OUT": np.array([1], np.int32)})
        assert (await stream.read()).infer_response.id == "slow"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


@in_loop
async def test_a_cancelled_stream_cancels_its_requests() -> None:
    async with grpc_lab() as lab:
        stream = lab.stream()
        await stream.write(infer_request("kept"))
        await stream.write(repeat_request(1, model="kept_repeat"))
        await until(lambda: len(lab.service.running) == 2)
        stream.cancel()
        await until(lambda: not lab.service.running)
        assert all(each.is_cancelled for each in lab.service.submitted)


@in_loop
async def test_a_client_that_does_not_read_holds_up_its_own_requests_only() -> None:
    large = np.zeros((1, 2_000_000), np.uint8)

    def answer(submission: object) -> None:
        submission.respond({"OUT": large})  # type: ignore[attr-defined]

    num_requests = 400
    async with grpc_lab() as lab:
        lab.service.answers["repeat"] = answer
        stream = lab.stream()

        async def write() -> None:
            for _ in range(num_requests):
                await stream.write(repeat_request(1))
            await stream.done_writing()

        writing = asyncio.create_task(write())
        await until(lambda: len(lab.service.submitted) > 64)
        await lab.infer(infer_request())  # another RPC is served
        assert len(lab.service.submitted) < num_requests
        assert len([each async for each in stream]) == num_requests
        await writing


@in_loop
async def test_a_client_that_lets_too_many_responses_wait_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_stream, "MAX_UNSENT_BYTES", 10_000_000)
    async with grpc_lab() as lab:
        stream = lab.stream()
        await stream.write(repeat_request(1, model="kept_repeat"))
        await until(lambda: bool(lab.service.running))
        [submission] = lab.service.running
        for _ in range(20):
            submission.respond({"OUT": np.zeros((1, 2_000_000), np.uint8)}, is_final=False)
        await until(lambda: submission.is_cancelled)
        assert submission.cancelled_because is not None
        assert "the client reads too slowly" in submission.cancelled_because.message
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "more than 10000000 bytes of responses wait"):
            while await stream.read() is not grpc.aio.EOF:
                pass


@in_loop
async def test_responses_that_wait_for_an_earlier_one_count_as_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_stream, "MAX_UNSENT_BYTES", 10_000)
    async with grpc_lab() as lab:
        stream = lab.stream()
        for _ in range(4):
            await stream.write(infer_request("kept"))
        await until(lambda: len(lab.service.submitted) == 4)
        first, *others = lab.service.submitted
        for each in others:
            each.respond({"SUM": np.zeros((1, 6000), np.uint8)})
        await until(lambda: first.is_cancelled)
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "more than 10000 bytes of responses wait"):
            await stream.read()


@in_loop
async def test_while_many_requests_of_a_stream_are_open_no_other_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_stream, "MAX_OPEN", 2)
    async with grpc_lab() as lab:
        stream = lab.stream()
        for _ in range(3):
            await stream.write(infer_request("kept"))
        await until(lambda: len(lab.service.submitted) == 2)
        await lab.infer(infer_request())  # by which the third one would have been read
        assert len(lab.service.submitted) == 3, "two of the stream, and the other RPC"
        for each in list(lab.service.running):
            each.respond({"SUM": VECTOR[None]})
        await until(lambda: len(lab.service.submitted) == 4)
        lab.service.submitted[3].respond({"SUM": VECTOR[None]})
        await stream.done_writing()
        assert len([each async for each in stream]) == 3


@in_loop
async def test_a_response_that_fails_after_the_end_of_the_stream_ends_its_request(tmp_path: Path) -> None:
    access = access_with_keys(tmp_path)
    access.open()
    async with grpc_lab(access=access) as lab:
        stream = lab.stream([*STRICT, ("authorization", "Bearer boss")])
        for _ in range(2):
            await stream.write(infer_request("kept"))
        await until(lambda: len(lab.service.submitted) == 2)
        first, second = lab.service.submitted
        first.fail(InferError("broken", InferErrorCode.INTERNAL))
        second.respond({"SUM": VECTOR[None]})  # of the same batch, before the stream has ended
        async with refused(grpc.StatusCode.INTERNAL, "broken"):
            await stream.read()
    assert [counts.num_requests for account, counts in access.usage if account.key == "boss"] == [2]
    await access.close()


@in_loop
async def test_a_stream_whose_requests_cannot_be_read_does_not_end_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> None:
        raise KeyError("unexpected")

    async with grpc_lab() as lab:
        monkeypatch.setattr(infer_stream.InferRequestMessage, "parse", broken)
        stream = lab.stream()
        await stream.write(infer_request())
        async with refused(grpc.StatusCode.INTERNAL, infer_stream.UNREADABLE):
            await stream.read()
