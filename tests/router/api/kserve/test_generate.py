"""The generate extension over HTTP."""

from __future__ import annotations

import asyncio

import numpy as np
import orjson
import pytest

from slipstream.router.api.kserve import response_waiter
from slipstream.router.config.kserve_config import KServeHttpConfig
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from tests.support.router.fake_cluster import run
from tests.support.router.fake_tensor_service import FakeSubmission
from tests.support.router.kserve_site import A, given, kserve_site, request_bytes
from tests.support.router.raw_client import Client

TEXT = "/v2/models/text/generate"
STREAM = "/v2/models/repeat/generate_stream"
NOT_ONE = "generate expects model to produce exactly 1 response"


def events(body: bytes) -> list[object]:
    assert body.endswith(b"\n\n")
    return [orjson.loads(event.removeprefix(b"data: ")) for event in body.split(b"\n\n")[:-1]]


def test_fields_are_inputs_or_parameters() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            body = {"id": "k", "X": "hi", "a": 1, "parameters": {"b": "x", "triton_c": True}}
            answer = await site.json("POST", TEXT, body)
            expected = {"id": "k", "a": 1, "b": "x", "triton_c": True}  # echoed by the model, which gets the id, too
            assert answer == {**expected, "model_name": "text", "model_version": "1", "OX": "hi"}
            assert (await site.json("POST", TEXT, {"X": [["hi"]]}))["OX"] == "hi"

    run(main)


def test_elements_fill_the_shape_of_the_input() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            path = "/v2/models/add_sub/generate"
            answer = await site.json("POST", path, {"A": A * 2, "B": A * 2})
            assert answer["SUM"] == [2.0, 4.0, 6.0, 8.0] * 2
            assert site.models.submitted[-1].request.inputs[0].shape == (2, 4)
            _, text = await site.error(path, {"A": [*A, 5], "B": A})
            assert text == "The schema can not convert input 'A' to tensor with proper shape"

    run(main)


def test_what_is_wrong_is_said_as_triton_says_it() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            for body, status, text in (
                (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
                ([], 500, "attempt to get members for non-object"),
                ({"X": 5}, 500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
                ({"X": "a", "t": None}, 400, "parameter 't' has invalid type."),
                ({"X": "a", "parameters": "y"}, 500, "Expected JSON object for keyword: 'parameters'"),
            ):
                got_status, got = await site.error(TEXT, body)
                assert (got_status, text in got) == (status, True), got
            coded = {"Content-Encoding": "gzip"}
            assert "only 'identity' is supported" in (await site.error(TEXT, {"X": "a"}, coded))[1]

    run(main)


def test_generate_wants_exactly_one_response() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            path = "/v2/models/repeat/generate"
            assert (await site.json("POST", path, {"IN": [4]}))["OUT"] == 4
            for numbers in ([1, 2], []):
                body = {"IN": numbers}
                status, text = await site.error(path, body)
                assert (status, text.startswith(NOT_ONE)) == (500, True)

    run(main)


def test_each_response_is_an_event() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            status, headers, body = await site.post(STREAM, {"IN": [5, 6, 7]})
            assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert [event["OUT"] for event in events(body) if isinstance(event, dict)] == [5, 6, 7]
            status, _, body = await site.post("/v2/models/text/generate_stream", {"X": "hi"})
            assert events(body) == [{"OX": "hi", "model_name": "text", "model_version": "1"}]

    run(main)


def test_a_failure_is_an_event_and_gives_the_status_if_it_comes_first() -> None:
    failure = InferError("boom", InferErrorCode.UNAVAILABLE)

    def fail_later(submission: FakeSubmission) -> None:
        submission.respond({"OUT": np.array([1], np.int32)}, is_final=False)
        submission.fail(failure)

    def go_on(submission: FakeSubmission) -> None:
        submission.respond({}, is_final=False, error=failure)
        submission.respond({"OUT": np.array([2], np.int32)})

    async def main() -> None:
        async with kserve_site() as site:
            answers = site.models.answers
            for answer, expected_status, expected in (
                (lambda submission: submission.fail(failure), 503, ["boom"]),
                (fail_later, 200, [1, "boom"]),
                (go_on, 503, ["boom", 2]),
            ):
                answers["kept_repeat"] = answer
                path = "/v2/models/kept_repeat/generate_stream"
                status, _, body = await site.post(path, {"IN": [1]})
                got = [event.get("error", event.get("OUT")) for event in events(body) if isinstance(event, dict)]
                assert (status, got) == (expected_status, expected)

    run(main)


def test_a_client_that_leaves_a_stream_cancels_it() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            client = await Client.connect(site.port)
            body = {"inputs": [given("IN", "INT32", [1], [1])], "IN": [1]}
            client.send(request_bytes("POST", "/v2/models/kept_repeat/generate_stream", {"IN": body["IN"]}))
            while not site.models.running:
                await asyncio.sleep(0)
            (submission,) = site.models.running
            submission.respond({"OUT": np.array([1], np.int32)}, is_final=False)
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            await client.close()
            while site.models.running:
                await asyncio.sleep(0)
            assert submission.is_cancelled

    run(main)


@pytest.mark.parametrize(
    ("limit", "most", "exceeded"),
    [("MAX_WAITING", 100, "100 responses"), ("MAX_WAITING_BYTES", 400, "400 bytes of responses")],
)
def test_a_stream_whose_client_does_not_keep_up_is_ended_with_the_servers_reason(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, exceeded: str
) -> None:
    monkeypatch.setattr(response_waiter, limit, most)

    async def main() -> None:
        async with kserve_site() as site:
            client = await Client.connect(site.port)
            client.send(request_bytes("POST", "/v2/models/kept_repeat/generate_stream", {"IN": [1]}))
            while not site.models.running:
                await asyncio.sleep(0)
            (submission,) = site.models.running
            for _ in range(200):  # before the handler has taken one
                submission.respond({"OUT": np.array([1], np.int32)}, is_final=False)
            assert site.models.num_leased == 0
            while site.models.running:
                await asyncio.sleep(0)
            text = f"the client reads too slowly: more than {exceeded} wait for it"
            assert submission.cancelled_because is not None
            assert submission.cancelled_because.message == text
            status, _, body = await client.response()
            assert (status, events(body)) == (503, [{"error": text}])
            await client.close()

    run(main)


def test_headers_that_are_forwarded_are_parameters() -> None:
    async def main() -> None:
        async with kserve_site(KServeHttpConfig(forward_headers="my-")) as site:
            assert (await site.post(TEXT, {"X": "a"}, {"My-Header": "y"}))[0] == 200
            assert site.models.submitted[-1].request.parameters == {"my-header": "y"}

    run(main)
