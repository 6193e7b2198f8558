"""Inference over HTTP: JSON and binary, what is wrong with requests, classification, compression."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import numpy as np
import orjson
import pytest

from slipstream.router.config.kserve_config import KServeHttpConfig
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from tests.support.router.fake_cluster import run
from tests.support.router.fake_tensor_service import FakeSubmission
from tests.support.router.kserve_site import (
    AB,
    ADD_SUB,
    KServeSite,
    binary_body,
    floats,
    given,
    kserve_site,
    request_bytes,
    text_elements,
)
from tests.support.router.raw_client import Client

SUM, DIFF = [1.5, 3.0, 4.0, 5.0], [0.5, 1.0, 2.0, 3.0]
INTEGER, UNSIGNED = "non-signed-integer as signed-integer", "non-unsigned-integer as unsigned-integer"
TYPES, LABELS = "/v2/models/types/infer", "/v2/models/labels/infer"
BINARY_AB = [given("A", "FP32", [1, 4], binary_data_size=16), given("B", "FP32", [1, 4], binary_data_size=16)]


def test_json_comes_back_as_json_with_the_id_that_it_had() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            answer = await site.json("POST", ADD_SUB, {"id": "7", "inputs": AB})
            assert list(answer) == ["id", "model_name", "model_version", "outputs"]
            assert answer["outputs"] == [
                {"name": "SUM", "datatype": "FP32", "shape": [1, 4], "data": SUM},
                {"name": "DIFF", "datatype": "FP32", "shape": [1, 4], "data": DIFF},
            ]
            assert "id" not in await site.json("POST", "/v2/models/add_sub/versions/1/infer", {"inputs": AB})
            one = await site.json("POST", ADD_SUB, {"inputs": AB, "outputs": [{"name": "DIFF"}]})
            assert [output["name"] for output in one["outputs"]] == ["DIFF"]

    run(main)


def test_binary_tensors_follow_the_heads_in_both_directions() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            tensors = floats(1, 2, 3, 4), floats(1, 1, 1, 1)
            wanted = [{"name": "SUM"}, {"name": "DIFF", "parameters": {"binary_data": True}}]
            body, headers = binary_body({"inputs": BINARY_AB, "outputs": wanted}, *tensors)
            status, answered, answer = await site.post(ADD_SUB, body, headers)
            assert (status, answered["content-type"]) == (200, "application/octet-stream")
            head_length = int(answered["inference-header-content-length"])
            outputs = orjson.loads(answer[:head_length])["outputs"]
            assert outputs[0]["data"] == [2.0, 3.0, 4.0, 5.0]
            assert outputs[1]["parameters"] == {"binary_data_size": 16}
            assert answer[head_length:] == floats(0, 1, 2, 3)
            body, headers = binary_body({"inputs": BINARY_AB, "parameters": {"binary_data_output": True}}, *tensors)
            assert (await site.post(ADD_SUB, body, headers))[2][-32:] == floats(2, 3, 4, 5, 0, 1, 2, 3)

    run(main)


def test_a_raw_request_is_the_only_input() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            raw = {"Inference-Header-Content-Length": "0"}
            _, headers, answer = await site.post("/v2/models/raw/infer", floats(1, 2, 3), raw)
            head = orjson.loads(answer[: int(headers["inference-header-content-length"])])
            assert (head["outputs"][0]["shape"], answer[-12:]) == ([3], floats(1, 2, 3))
            assert (await site.post("/v2/models/text/infer", b"hello", raw))[2].endswith(text_elements(b"hello"))
            _, _, rows = await site.post(LABELS, floats(1, 2, 3), raw)
            assert b'"shape":[1,3]' in rows
            status, text = await site.error("/v2/models/raw/infer", b"1234567", raw)
            assert (status, text.partition("] ")[2]) == (
                400,
                "input byte size mismatch for input 'raw_input' for model 'raw'. Expected 4, got 7",
            )
            _, text = await site.error(ADD_SUB, b"1234", raw)
            assert "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub'" in text

    run(main)


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("BOOL", [True, False], [True, False]),
        ("BOOL", [1, 0], "non-boolean as boolean"),
        ("UINT8", [0, 255, 300], [0, 255, 44]),
        ("UINT8", [-1], UNSIGNED),
        ("UINT16", [1.0], UNSIGNED),
        ("UINT32", [2**32 - 1, 2**32], [2**32 - 1, 0]),
        ("UINT64", [2**64 - 1], [2**64 - 1]),
        ("INT8", [-128, 127, 128, 300], [-128, 127, -128, 44]),
        ("INT16", [True], INTEGER),
        ("INT32", [1.5], INTEGER),
        ("INT32", [[1, 2], [[-3]]], [1, 2, -3]),
        ("INT64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("INT64", [2**63], INTEGER),
        ("FP32", [0.1, 1, -0.0], [0.10000000149011612, 1.0, -0.0]),
        ("FP32", ["1"], "non-number as double"),
        ("FP64", [0.1, 5e-324], [0.1, 5e-324]),
        ("FP16", [1.0], "receiving FP16 data via JSON is not supported. Please use the binary data format for input"),
        ("BYTES", ["a", "é", "", "\0x"], ["a", "é", "", "\0x"]),
        ("BYTES", [1], "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ("INT32", [], []),
    ],
)
def test_json_of_each_datatype_is_read_and_written_as_triton_does(
    datatype: str, data: list[object], expected: list[object] | str
) -> None:
    async def main() -> None:
        num_elements = len(expected) if isinstance(expected, list) else len(data)
        body = {"inputs": [given(datatype, datatype, [1, num_elements], data)]}
        async with kserve_site() as site:
            if isinstance(expected, str):
                assert expected in (await site.error(TYPES, body))[1]
            else:
                assert (await site.json("POST", TYPES, body))["outputs"][0]["data"] == expected

    run(main)


def test_json_carries_infinity_and_bytes_that_are_no_utf8() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            values = [float("inf"), float("-inf"), 1.0]
            body = json.dumps({"inputs": [given("FP64", "FP64", [1, 3], values)]}).encode()
            _, _, answer = await site.post(TYPES, body)
            assert json.loads(answer)["outputs"][0]["data"] == values
            assert b"[Infinity,-Infinity,1.0]" in answer
            head = {"inputs": [given("BYTES", "BYTES", [1, 1], binary_data_size=6)]}
            body, headers = binary_body(head, text_elements(b"\xff\xfe"))
            assert b'"data":["\xff\xfe"]' in (await site.post(TYPES, body, headers))[2]

    run(main)


def test_half_floats_pass_in_binary_only() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            data = np.array([1, 2], np.float16).tobytes()
            for datatype in ("FP16", "BF16"):
                inputs = [given(datatype, datatype, [1, 2], binary_data_size=4)]
                body, headers = binary_body({"inputs": inputs, "parameters": {"binary_data_output": True}}, data)
                assert (await site.post(TYPES, body, headers))[2].endswith(data)
                body, headers = binary_body({"inputs": inputs}, data)
                assert f"sending {datatype} data via JSON" in (await site.error(TYPES, body, headers))[1]

    run(main)


HUGE = b"1" + b"0" * 400
MALFORMED = [
    (b'{"a": NaN, "parameters": {"b": %b}}' % HUGE, 500, "failed to parse the request JSON buffer: "),
    (b'{"inputs": [{"name": "A", "data": [NaN, %b]}]}' % HUGE, 500, "failed to parse the request JSON buffer: "),
    (b'{"a": NaN, "id": "\\ud800", "inputs": []}', 500, "failed to parse the request JSON buffer: "),
    (b"{", 500, "failed to parse the request JSON buffer: "),
    (b"", 400, "Raw request must only have 1 input"),
    ({}, 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ([], 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ({"inputs": {}}, 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    ({"inputs": AB, "id": 7}, 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
    ({"inputs": ["x"]}, 400, "in 'parameters'. But no field is set"),
    ({"inputs": [given("A", "FP32", [1], [1], binary_data_size=4)]}, 400, "But set 'data' 'binary_data_size'"),
    ({"inputs": [{"name": "A", "shape": [1], "data": [1]}]}, 500, "Unable to parse 'datatype': attempt to access non"),
    ({"inputs": [given("A", "FP32", [-1], [1])]}, 500, f"Unable to parse 'shape': attempt to access JSON {UNSIGNED}"),
    ({"inputs": [given("A", "FP33", [1], [1])]}, 400, "invalid datatype for input A"),
    ({"inputs": [given("A", "FP32", [1], 5)]}, 500, "Unable to parse 'data': attempt to access JSON non-array as"),
    ({"inputs": [given("A", "FP32", [2], [1])]}, 500, "Shape does not match true shape of 'data' field"),
    ({"inputs": [given("A", "FP32", [1], [1, 2])]}, 500, "Shape does not match true shape of 'data' field"),
    ({"inputs": [AB[0], AB[0]]}, 400, "input 'A' already exists in request"),
    ({"inputs": AB, "outputs": {}}, 500, "Unable to parse 'outputs': attempt to access JSON non-array as array"),
    ({"inputs": AB, "outputs": [{}]}, 500, "Unable to parse 'name': attempt to access non-existing object member"),
    ({"inputs": AB, "outputs": [{"name": "Z"}]}, 400, "unexpected inference output 'Z' for model 'add_sub'"),
    ({"inputs": AB, "parameters": None}, 500, "failed to get request params.: attempt to get members for non-object"),
    ({"inputs": AB, "parameters": {"a": None}}, 400, "parameter 'a' has invalid type. It should be either 'int'"),
    ({"inputs": AB, "parameters": {"triton_x": 1}}, 400, "parameter keys starting with 'triton_' are reserved"),
    ({"inputs": AB, "parameters": {"sequence_id": -1}}, 500, "Unable to parse 'sequence_id': attempt to access JSON"),
    ({"inputs": AB, "parameters": {"sequence_start": 1}}, 500, "Unable to parse 'sequence_start': attempt to access"),
    (
        {"inputs": AB, "parameters": {"priority": "x"}},
        500,
        f"Unable to parse 'priority': attempt to access JSON {UNSIGNED}",
    ),
    ({"inputs": AB, "parameters": {"binary_data_output": 1}}, 500, "Unable to parse 'binary_data_output': attempt"),
]


def test_what_is_wrong_with_a_body_is_said_as_triton_says_it() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            for body, expected_status, expected in MALFORMED:
                status, text = await site.error(ADD_SUB, body)
                assert (status, expected in text) == (expected_status, True), (body, text)

    run(main)


def test_lengths_that_do_not_fit_are_named() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            tensors = floats(1, 2, 3, 4), floats(1, 1, 1, 1)
            body, headers = binary_body({"inputs": BINARY_AB}, *tensors)
            _, text = await site.error(ADD_SUB, body[:-9], headers)
            assert text == "unexpected size for input 'B', expecting 9 additional bytes for model 'add_sub'"
            _, text = await site.error(ADD_SUB, body + b"xx", headers)
            assert text == "unexpected additional input data for model 'add_sub'"
            for length in ("-1", "99999"):
                _, text = await site.error(ADD_SUB, body, {"Inference-Header-Content-Length": length})
                assert text == f"inference header size should be in range (0, {len(body)}), got: {length}"

    run(main)


def test_parameters_reach_the_model_and_steering_ones_the_request() -> None:
    async def main() -> None:
        async with kserve_site(KServeHttpConfig(forward_headers="^my-")) as site:
            parameters = {"a": 1, "b": "x", "c": True, "d": 1.5, "e": 2**63, "sequence_id": "s", "sequence_end": True}
            body = {"inputs": AB, "parameters": {**parameters, "priority": 3, "timeout": 12}}
            status, _, _ = await site.post(ADD_SUB, body, {"My-Header": "y", "X-Request-Id": "here"})
            assert status == 200
            request = site.models.submitted[-1].request
            assert request.parameters == {"a": 1, "b": "x", "c": True, "d": 1.5, "e": 2.0**63, "my-header": "y"}
            assert (request.priority, request.timeout_us, request.request_id) == (3, 12, "here")
            assert request.sequence is not None
            assert (request.sequence.correlation_id, request.sequence.is_end) == ("s", True)

    run(main)


def test_classes_are_ordered_and_labelled() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            rows = given("X", "FP32", [2, 3], [1, 5, 5, 9, 8, 7])
            body = {"inputs": [rows], "outputs": [{"name": "OX", "parameters": {"classification": 2}}]}
            (output,) = (await site.json("POST", LABELS, body))["outputs"]
            assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
            assert output["data"] == ["5.000000:1:dog", "5.000000:2", "9.000000:0:cat", "8.000000:1:dog"]
            body = {"inputs": [given("INT64", "INT64", [1, 2], [1, 2**40])]}
            body["outputs"] = [{"name": "OINT64", "parameters": {"classification": 9}}]
            assert (await site.json("POST", TYPES, body))["outputs"][0]["data"] == ["1099511627776:1", "1:0"]
            body = {"inputs": [given("BOOL", "BOOL", [1, 1], [True])]}
            body["outputs"] = [{"name": "OBOOL", "parameters": {"classification": 1}}]
            assert (await site.error(TYPES, body))[1].endswith("due to unsupported type 'BOOL'")

    run(main)


def test_bodies_may_be_compressed_in_both_directions() -> None:
    async def main() -> None:
        async with kserve_site(KServeHttpConfig(max_input_bytes=4096)) as site:
            body = orjson.dumps({"inputs": AB})
            for coding, data in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
                status, headers, answer = await site.post(
                    ADD_SUB, data, {"Content-Encoding": coding, "Accept-Encoding": f"br, {coding}, identity;q=0.5"}
                )
                assert (status, headers["content-encoding"]) == (200, coding)
                plain = gzip.decompress(answer) if coding == "gzip" else zlib.decompress(answer)
                assert orjson.loads(plain)["outputs"][0]["data"] == SUM
            status, headers, answer = await site.post(ADD_SUB, body, {"Content-Encoding": "br"})
            assert (status, answer) == (501, b'{"error":"Unsupported compression type"}')
            assert headers["accept-encoding"] == "gzip, deflate"
            bomb = gzip.compress(bytes(100_000))
            assert (await site.error(ADD_SUB, bomb, {"Content-Encoding": "gzip"}))[0] == 400

    run(main)


def test_json_is_bounded_and_binary_is_not() -> None:
    async def main() -> None:
        async with kserve_site(KServeHttpConfig(max_input_bytes=1000)) as site:
            hint = "Use --http-max-input-size to increase the limit."
            body = {"inputs": [given("X", "FP32", [400], [0] * 400)]}
            assert (await site.error("/v2/models/raw/infer", body)) == (
                400,
                "JSON input 'X' has a byte_size (1600 bytes) that exceeds the maximum allowed value of 1000 bytes. "
                + hint,
            )
            body["padding"] = "x" * 1000
            assert hint in (await site.error("/v2/models/raw/infer", body))[1]
            head = {"inputs": [given("X", "FP32", [400], binary_data_size=1600)], "outputs": []}
            data, headers = binary_body(head, bytes(1600))
            assert (await site.post("/v2/models/raw/infer", data, headers))[0] == 200

    run(main)


def test_errors_of_models_have_their_code_and_decoupled_models_are_refused() -> None:
    async def main() -> None:
        async with kserve_site() as site:

            def fail(submission: FakeSubmission) -> None:
                submission.fail(InferError("not now", InferErrorCode.UNAVAILABLE))

            site.models.answers["kept"] = fail
            assert await site.error("/v2/models/kept/infer", {"inputs": AB}) == (503, "not now")
            body = {"inputs": [given("IN", "INT32", [1], [1])]}
            text = "HTTP end point doesn't support models with decoupled transaction policy"
            assert await site.error("/v2/models/repeat/infer", body) == (501, text)
            unknown = "Request for unknown model: 'nope' is not found"
            assert await site.error("/v2/models/nope/infer", {"inputs": AB}) == (404, unknown)

    run(main)


async def begun(site: KServeSite) -> FakeSubmission:
    while not site.models.running:
        await asyncio.sleep(0)
    return next(iter(site.models.running))


def test_a_client_that_leaves_cancels_its_request() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            client = await Client.connect(site.port)
            client.send(request_bytes("POST", "/v2/models/kept/infer", {"inputs": AB}))
            submission = await begun(site)
            await client.close()
            while site.models.running:
                await asyncio.sleep(0)
            assert submission.is_cancelled

    run(main)


def test_pipelined_requests_are_answered_in_order_on_one_connection() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            client = await Client.connect(site.port)
            requests = [request_bytes("POST", ADD_SUB, {"id": str(number), "inputs": AB}) for number in range(20)]
            client.send(b"".join(requests) + request_bytes("GET", "/v2/health/ready"))
            for number in range(20):
                status, _, body = await client.response()
                assert (status, orjson.loads(body)["id"]) == (200, str(number))
            assert (await client.response())[0] == 200
            await client.close()

    run(main)


def test_parameters_and_errors_of_models_that_are_no_unicode_are_escaped() -> None:
    def answer(submission: FakeSubmission) -> None:
        response = submission.response({})
        response.parameters = {"name": "\udc80", "big": 1 << 70}
        submission.respond_with(response)

    def fail(submission: FakeSubmission) -> None:
        submission.fail(InferError("no file \udc80é", InferErrorCode.INTERNAL))

    async def main() -> None:
        async with kserve_site() as site:
            site.models.answers["add_sub"] = answer
            status, _, body = await site.post(ADD_SUB, {"inputs": AB})
            assert (status, b'"name":"\\udc80","big":1180591620717411303424' in body) == (200, True)
            site.models.answers["add_sub"] = fail
            assert await site.error(ADD_SUB, {"inputs": AB}) == (500, "no file \\udc80é")

    run(main)


def test_the_same_head_comes_again_with_other_tensors() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            head = {"inputs": BINARY_AB, "outputs": [{"name": "SUM"}], "parameters": {"a": 1, "sequence_id": 5}}
            for number in (1.0, 2.0):
                body, headers = binary_body(head, floats(*[number] * 4), floats(1, 1, 1, 1))
                _, _, answer = await site.post(ADD_SUB, body, headers)
                assert orjson.loads(answer)["outputs"][0]["data"] == [number + 1] * 4
                request = site.models.submitted[-1].request
                assert request.parameters == {"a": 1}
                assert request.sequence is not None
                request.parameters.clear()  # as a model may
            _, text = await site.error(ADD_SUB, body[:-9], headers)
            assert text == "unexpected size for input 'B', expecting 9 additional bytes for model 'add_sub'"

    run(main)
