"""Answers of the OpenAI API that fail, and clients that leave before they are complete or read them slowly."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import httpx
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionChunk

from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.generation.answer.answer import Answer
from slipstream.router.api.generation.answer.answer_format import AnswerHead
from slipstream.router.api.generation.answer.choice import Choice
from slipstream.router.api.generation.answer.output_text import OutputText
from slipstream.router.api.generation.answer.token_names import LogprobNames
from slipstream.router.api.openai.answer.completion_format import CompletionFormat
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.reader import Request
from slipstream.router.observability.front_counts import ModelCounts
from slipstream.router.protocol.generation import (
    GenerationError,
    GenerationFinish,
    QueueFullError,
    ShuttingDownError,
    Usage,
)
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.stream import GenerationStream, Handouts
from tests.support.router.fake_cluster import HTTP, MODEL, FrontUnderTest, Script, events_of, front, openai_client, run
from tests.support.router.raw_client import post

TEXT = "Hello wörld 🙂, this is it."
HI = [{"role": "user", "content": "hi"}]


def test_a_stream_that_waits_is_pinged_and_a_failure_after_that_is_an_event() -> None:
    async def main() -> None:
        async with front(http=replace(HTTP, sse_ping_s=0.01)) as site:
            error = GenerationError("worker_failed", "it went wrong")
            site.service.script = lambda request: Script([5], error=error, hold_at=0)
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            body = orjson.dumps({"model": MODEL, "prompt": "a", "stream": True})
            writer.write(post("/v1/completions", body))
            head, _, _ = (await reader.readuntil(b": ping\n\n")).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            site.service.release.set()
            rest = await reader.read()  # to the end of the connection
            assert b'data: {"error":' in rest
            assert b"[DONE]" not in rest
            writer.close()

    run(main)


def test_clients_do_not_take_a_ping_for_text() -> None:
    async def main() -> None:
        async with front(TEXT, http=replace(HTTP, sse_ping_s=0.01), hold_at=2) as site, openai_client(site) as client:
            stream = await client.completions.create(model=MODEL, prompt="a", stream=True, max_tokens=60)
            release = asyncio.get_running_loop().call_later(0.1, site.service.release.set)
            text = "".join([choice.text async for chunk in stream for choice in chunk.choices])
            release.cancel()
            assert text == TEXT

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("worker_failed", 500),
        ("queue_timeout", 503),
        ("request_timeout", 504),
        ("shutting_down", 503),
        ("prompt_too_long", 400),
    ],
)
def test_a_failure_before_the_first_token_is_a_status_and_never_a_200(stream: bool, kind: str, status: int) -> None:
    async def main() -> None:
        async with front() as site, openai_client(site) as client:
            error = GenerationError(kind, "it went wrong", retry_after_s=1.5)  # type: ignore[arg-type]
            site.service.script = lambda request: Script([], error=error)
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model=MODEL, messages=HI, stream=stream)
            assert caught.value.status_code == status
            assert caught.value.response.headers["retry-after"] == "2"
            assert "It went wrong" in caught.value.message

    run(main)


def test_a_failure_in_mid_stream_is_an_error_event_and_no_done() -> None:
    async def main() -> None:
        async with front() as site, openai_client(site) as client:
            ids = site.tokenizer._tokenizer.encode("some text", add_special_tokens=False).ids
            error = GenerationError("worker_failed", "all workers died")
            site.service.script = lambda request: Script(ids, error=error)
            stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
            chunks: list[ChatCompletionChunk] = []

            async def read() -> None:
                async for chunk in stream:
                    chunks.append(chunk)

            with pytest.raises(openai.APIError, match="All workers died"):
                await read()
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "some text"
            assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
            _, _, body = await site.post("/v1/chat/completions", messages=HI, stream=True)
            last = events_of(body)[-1]
            assert isinstance(last, dict)
            assert last["error"]["code"] == "worker_failed"

    run(main)


def test_one_failing_choice_fails_the_answer_and_cancels_the_others() -> None:
    async def main() -> None:
        async with front(hold_at=1) as site:
            normal = site.service.script
            error = GenerationError("worker_failed", "died")
            site.service.script = lambda r: Script([5], error=error) if r.request_id.endswith("#1") else normal(r)
            status, _, body = await site.post("/v1/chat/completions", messages=HI, n=3)
            assert (status, orjson.loads(body)["error"]["code"]) == (500, "worker_failed")
            assert {request_id[-2:] for request_id in site.service.cancelled} == {"#0", "#2"}

    run(main)


@pytest.mark.parametrize("refusal", [QueueFullError(100, 100, 7.2), ShuttingDownError()])
def test_a_full_queue_is_a_503_that_says_when_to_come_back(refusal: QueueFullError | ShuttingDownError) -> None:
    async def main() -> None:
        async with front() as site:
            site.service.refusal = refusal
            status, headers, body = await site.post("/v1/chat/completions", messages=HI, stream=True)
            assert status == 503
            assert headers["retry-after"] == ("8" if isinstance(refusal, QueueFullError) else "1")
            assert orjson.loads(body)["error"]["type"] == "server_error"

    run(main)


def test_before_any_worker_has_connected_requests_are_told_to_come_back() -> None:
    async def main() -> None:
        async with front() as site:
            site.service.max_model_len = None
            for path, fields in (("/v1/chat/completions", {"messages": HI}), ("/v1/completions", {"prompt": "x"})):
                status, headers, _ = await site.post(path, **fields)
                assert (status, headers["retry-after"]) == (503, "1")

    run(main)


def test_the_context_length_is_remembered_while_no_worker_is_connected() -> None:
    async def main() -> None:
        async with front("abc") as site:
            assert (await site.post("/v1/completions", prompt="x"))[0] == 200
            site.service.max_model_len = None
            assert (await site.post("/v1/completions", prompt="x"))[0] == 200

    run(main)


async def start_stream(site: FrontUnderTest, **fields: object) -> asyncio.StreamWriter:
    body = orjson.dumps({"model": MODEL, "messages": HI, **fields})
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    return writer


@pytest.mark.parametrize("hold_at", [0, 3])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"stream": True, "n": 3}])
def test_a_client_that_leaves_cancels_its_requests(hold_at: int, fields: dict[str, object]) -> None:
    async def main() -> None:
        async with front(hold_at=hold_at) as site:
            writer = await start_stream(site, **fields)
            await site.service.submitted.wait()
            await asyncio.sleep(0.02)  # into the wait, before or after the first token
            writer.close()
            await site.service.some_cancelled.wait()
            while len(site.service.cancelled) < len(site.service.requests):
                await asyncio.sleep(0.001)
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            status, _, _ = await site.request("GET", "/health/live")
            assert status == 200

    run(main)


def test_closing_the_stream_of_the_openai_client_cancels() -> None:
    async def main() -> None:
        async with front(hold_at=2) as site, openai_client(site) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
            async for _ in stream:
                break
            await stream.close()
            await site.service.some_cancelled.wait()

    run(main)


def test_a_timeout_of_the_client_cancels() -> None:
    async def main() -> None:
        async with front(hold_at=0) as site, httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{site.port}/v1/chat/completions"
            patience = httpx.Timeout(10.0, read=0.1)
            while not site.service.some_cancelled.is_set():  # on a busy machine it may leave before it is heard
                with pytest.raises(httpx.ReadTimeout):
                    await client.post(url, json={"model": MODEL, "messages": HI}, timeout=patience)

    run(main)


class RecordingSink:
    """The connection's side of an exchange, in memory."""

    date = "now"
    draining = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def abort(self) -> None:
        raise AssertionError("aborted")


def test_a_slow_reader_gets_what_came_meanwhile_in_one_chunk() -> None:
    async def main() -> None:
        async with front() as site:
            sink = RecordingSink()
            exchange = Exchange(
                Request("POST", "/", "", {}, b"", keep_alive=True, http10=False), sink, ExchangeContext()
            )
            timeline = Timeline(0.0)
            stream = GenerationStream(
                RequestRecord("r", "", 0, 1, timeline), lambda request_id, reason: None, Handouts()
            )
            pieces = site.tokenizer.pieces
            choice = Choice(0, stream, OutputText(pieces, (), False), ModelCounts().begin(0.0), "")
            form = CompletionFormat(
                AnswerHead("r", 0, MODEL), LogprobNames(pieces), logprobs=False, include_usage=False
            )
            answer = Answer([choice], form, num_prompt_tokens=1, choices_per_prompt=1, prompt_param="prompt")
            sending = asyncio.create_task(answer.send_stream(exchange))
            exchange.pause()
            for token_id in site.tokenizer._tokenizer.encode("a b c d e f", add_special_tokens=False).ids:
                stream.deliver((token_id,), ())
                for _ in range(3):
                    await asyncio.sleep(0)
            assert len(sink.sent) == 1
            stream.end(GenerationFinish("length", Usage(1, 6, 0)))
            exchange.resume()
            await sending
            assert len(sink.sent) == 2
            assert b'"text":" b c d e f"' in sink.sent[1]

    run(main)
