"""Answers of the OpenAI API, read with the real `openai` client."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionChunk

from slipstream.router.generation import (
    GenerationError,
    GenerationFinish,
    QueueFullError,
    ShuttingDownError,
    Usage,
)
from slipstream.router.history import RequestRecord, Timeline
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.reader import Request
from slipstream.router.messages import unpack_ids
from slipstream.router.metrics import FrontMetrics
from slipstream.router.openai.answer import Answer, Choice
from slipstream.router.openai.formats import AnswerHead, CompletionFormat
from slipstream.router.openai.output_text import OutputText
from slipstream.router.stream import GenerationStream
from tests.router.fake_cluster import END, MODEL, FrontUnderTest, Script, events_of, front, openai_client, run

TEXT = "Hello wörld 🙂, this is it."
HI = [{"role": "user", "content": "hi"}]


def test_models_are_listed_and_found() -> None:
    async def main() -> None:
        async with front() as site, openai_client(site) as client:
            assert [model.id async for model in client.models.list()] == [MODEL]
            assert (await client.models.retrieve(MODEL)).owned_by == "slipstream"
            with pytest.raises(openai.NotFoundError) as caught:
                await client.models.retrieve("other/model")
            assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    run(main)


def test_a_chat_completion_has_text_reason_and_usage() -> None:
    async def main() -> None:
        async with front(TEXT, reason="stop", num_cached_tokens=2) as site, openai_client(site) as client:
            answer = await client.chat.completions.create(model=MODEL, messages=HI)
            choice = answer.choices[0]
            assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
            request = site.service.requests[0]
            num_prompt_tokens = len(unpack_ids(request.prompt_ids))
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == num_prompt_tokens
            assert answer.usage.completion_tokens == len(site.tokenizer._tokenizer.encode(TEXT).ids) - 1
            assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
            assert answer.usage.prompt_tokens_details.cached_tokens == 2
            assert (answer.id, answer.object, answer.model) == (request.request_id, "chat.completion", MODEL)
            assert request.sampling.max_tokens == 512 - num_prompt_tokens  # the rest of the context
            assert request.sampling.temperature == 1.0

    run(main)


@pytest.mark.parametrize("tokens_a_delta", [1, 4])
def test_a_chat_stream_adds_up_to_the_whole_answer(tokens_a_delta: int) -> None:
    async def main() -> None:
        async with front(TEXT, tokens_a_delta=tokens_a_delta) as site, openai_client(site) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
            chunks = [chunk async for chunk in stream]
            assert chunks[0].choices[0].delta.role == "assistant"
            assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
            assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
            assert all(chunk.usage is None for chunk in chunks)
            assert {chunk.id for chunk in chunks} == {site.service.requests[0].request_id}
            assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}

    run(main)


def test_a_stream_ends_with_usage_and_done_if_asked() -> None:
    async def main() -> None:
        async with front(TEXT, num_cached_tokens=1) as site, openai_client(site) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
            )
            last = [chunk async for chunk in stream][-1]
            assert last.choices == []
            assert last.usage is not None
            assert last.usage.completion_tokens == len(site.tokenizer._tokenizer.encode(TEXT).ids) - 1
            assert last.usage.prompt_tokens_details.cached_tokens == 1
            _, headers, body = await site.post(
                "/v1/chat/completions", messages=HI, stream=True, stream_options={"include_usage": True}
            )
            assert headers["content-type"].startswith("text/event-stream")
            events = events_of(body)
            assert events[-1] == "[DONE]"
            assert all("usage" in event for event in events[:-1])

    run(main)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_chunk_tells_the_usage_so_far_if_asked(path: str) -> None:
    async def main() -> None:
        async with front(TEXT) as site:
            options = {"include_usage": True, "continuous_usage_stats": True}
            prompt = {"messages": HI} if "chat" in path else {"prompt": "a"}
            _, _, body = await site.post(path, **prompt, stream=True, max_tokens=99, stream_options=options)
            *chunks, last, done = events_of(body)
            assert done == "[DONE]"
            counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            assert counts == sorted(counts)
            assert counts[0] < counts[-1] == last["usage"]["completion_tokens"]
            assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}
            options["include_usage"] = False
            _, _, body = await site.post(path, **prompt, stream=True, max_tokens=99, stream_options=options)
            assert not any("usage" in event for event in events_of(body)[:-1])

    run(main)


def test_completions_take_text_texts_ids_and_lists_of_ids() -> None:
    async def main() -> None:
        async with front("abc") as site, openai_client(site) as client:
            for prompt in ("one two", "", [""], ["one two", "three"], [5, 6, 7], [[5, 6, 7], [8]]):
                site.service.requests.clear()
                answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=5)
                is_many = isinstance(prompt, list) and not isinstance(prompt[0], int)
                assert [choice.index for choice in answer.choices] == list(range(len(prompt) if is_many else 1))
                assert all(choice.text == "abc" for choice in answer.choices)
                sent = [unpack_ids(request.prompt_ids) for request in site.service.requests]
                if prompt == [5, 6, 7]:
                    assert sent == [[5, 6, 7]]
                elif prompt == [[5, 6, 7], [8]]:
                    assert sent == prompt
                else:
                    assert all(ids[0] == 1 for ids in sent)  # the model wants a start token before raw text
                assert answer.usage is not None
                assert answer.usage.prompt_tokens == sum(map(len, sent))

    run(main)


def test_completions_generate_16_tokens_by_default_and_less_where_there_is_no_room() -> None:
    async def main() -> None:
        async with front(TEXT * 10) as site, openai_client(site) as client:
            await client.completions.create(model=MODEL, prompt=[5])
            await client.completions.create(model=MODEL, prompt=[5] * 509)
            assert [request.sampling.max_tokens for request in site.service.requests] == [16, 3]

    run(main)


def test_echo_puts_the_prompt_before_the_text() -> None:
    async def main() -> None:
        async with front("abc") as site, openai_client(site) as client:
            answer = await client.completions.create(model=MODEL, prompt="say: ", echo=True)
            assert answer.choices[0].text == "say: abc"
            stream = await client.completions.create(model=MODEL, prompt="say: ", echo=True, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == "say: abc"
            ids = site.tokenizer._tokenizer.encode("say: ").ids
            answer = await client.completions.create(model=MODEL, prompt=ids, echo=True)
            assert answer.choices[0].text == "say: abc"

    run(main)


def test_n_choices_have_seeds_in_a_row_and_count_the_prompt_once() -> None:
    async def main() -> None:
        async with front("abc") as site, openai_client(site) as client:
            answer = await client.chat.completions.create(model=MODEL, messages=HI, n=3, seed=7)
            assert [choice.index for choice in answer.choices] == [0, 1, 2]
            requests = site.service.requests
            assert [request.sampling.seed for request in requests] == [7, 8, 9]
            assert [request.request_id for request in requests] == [f"{answer.id}#{i}" for i in range(3)]
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == len(unpack_ids(requests[0].prompt_ids))
            assert answer.usage.completion_tokens == 3 * len(site.tokenizer._tokenizer.encode("abc").ids[1:])
            stream = await client.chat.completions.create(model=MODEL, messages=HI, n=2, stream=True)
            texts = ["", ""]
            ends = []
            async for chunk in stream:
                choice = chunk.choices[0]
                texts[choice.index] += choice.delta.content or ""
                ends += [choice.finish_reason] if choice.finish_reason else []
            assert (texts, ends) == (["abc", "abc"], ["length", "length"])

    run(main)


def test_requests_without_a_seed_get_different_ones_and_a_negative_seed_is_made_positive() -> None:
    async def main() -> None:
        async with front("abc") as site, openai_client(site) as client:
            for seed in (None, None, -1):
                await client.chat.completions.create(model=MODEL, messages=HI, seed=seed)
            first, second, third = (request.sampling.seed for request in site.service.requests)
            assert first != second
            assert third == 2**63 - 1

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_ends_the_text_before_it_and_cancels(stream: bool) -> None:
    async def main() -> None:
        async with front(TEXT) as site:
            status, _, body = await site.post(
                "/v1/chat/completions", messages=HI, stop=["never", "d 🙂, th"], stream=stream
            )
            assert status == 200
            if stream:
                choices = [event["choices"][0] for event in events_of(body)[:-1]]
                text = "".join(choice["delta"].get("content", "") for choice in choices)
                reason = choices[-1]["finish_reason"]
            else:
                choice = orjson.loads(body)["choices"][0]
                text, reason = choice["message"]["content"], choice["finish_reason"]
            assert (text, reason) == ("Hello wörl", "stop")
            assert len(site.service.cancelled) == 1

    run(main)


def test_a_stop_string_counts_only_the_tokens_up_to_it() -> None:
    async def main() -> None:
        async with front("a b c d e f g", tokens_a_delta=100) as site, openai_client(site) as client:
            answer = await client.chat.completions.create(model=MODEL, messages=HI, stop=" c")
            assert answer.choices[0].message.content == "a b"
            assert answer.usage is not None
            assert answer.usage.completion_tokens == len(site.tokenizer._tokenizer.encode("a b c").ids) - 1
            answer = await client.chat.completions.create(
                model=MODEL, messages=HI, stop=" c", extra_body={"include_stop_str_in_output": True}
            )
            assert answer.choices[0].message.content == "a b c"

    run(main)


def test_a_stop_token_is_counted_but_not_shown() -> None:
    async def main() -> None:
        async with front("abc d") as site, openai_client(site) as client:
            ids = site.tokenizer._tokenizer.encode("abc d", add_special_tokens=False).ids
            site.service.script = lambda request: Script(list(ids), reason="stop", stop_token_id=ids[-1])
            answer = await client.chat.completions.create(
                model=MODEL, messages=HI, extra_body={"stop_token_ids": [ids[-1]]}, logprobs=True
            )
            choice = answer.choices[0]
            assert (choice.message.content, choice.finish_reason) == (
                site.tokenizer._tokenizer.decode(ids[:-1]),
                "stop",
            )
            assert choice.logprobs is not None
            assert len(choice.logprobs.content) == len(ids) - 1
            assert answer.usage is not None
            assert answer.usage.completion_tokens == len(ids)
            assert site.service.requests[0].sampling.stop_token_ids == (ids[-1],)

    run(main)


def test_a_stop_token_alone_gives_an_empty_answer() -> None:
    async def main() -> None:
        async with front() as site, openai_client(site) as client:
            site.service.script = lambda request: Script([END], reason="stop", stop_token_id=END)
            answer = await client.chat.completions.create(model=MODEL, messages=HI)
            assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")
            stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
            chunks = [chunk async for chunk in stream]
            assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"]
            assert chunks[0].choices[0].finish_reason == "stop"

    run(main)


def test_chat_logprobs_give_every_token_with_bytes_and_alternatives() -> None:
    async def main() -> None:
        async with front(TEXT) as site, openai_client(site) as client:
            for stream in (False, True):
                answer = await client.chat.completions.create(
                    model=MODEL, messages=HI, logprobs=True, top_logprobs=2, stream=stream
                )
                entries = []
                if stream:
                    async for chunk in answer:
                        if chunk.choices[0].logprobs:
                            entries += chunk.choices[0].logprobs.content
                else:
                    entries = answer.choices[0].logprobs.content
                assert b"".join(bytes(entry.bytes) for entry in entries).decode() == TEXT
                assert {entry.logprob for entry in entries} == {-0.5}
                assert [len(entry.top_logprobs) for entry in entries] == [2] * len(entries)
                assert entries[0].top_logprobs[0].token == entries[0].token
            assert [request.sampling.logprobs for request in site.service.requests] == [2, 2]

    run(main)


def test_completion_logprobs_have_offsets_into_the_text() -> None:
    async def main() -> None:
        async with front("one two three") as site, openai_client(site) as client:
            answer = await client.completions.create(model=MODEL, prompt="x", logprobs=1)
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            assert "".join(logprobs.tokens) == "one two three"
            for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
                assert "one two three"[offset : offset + len(token)] == token
            assert set(logprobs.token_logprobs) == {-0.5}
            assert all(-0.5 in top.values() for top in logprobs.top_logprobs)

    run(main)


def test_logprobs_stop_with_the_text_at_a_stop_string() -> None:
    async def main() -> None:
        async with front("a b c d e f g") as site, openai_client(site) as client:
            for stream in (False, True):
                answer = await client.chat.completions.create(
                    model=MODEL, messages=HI, logprobs=True, stop=" c d", stream=stream
                )
                if stream:
                    entries = [e async for c in answer if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
                else:
                    entries = answer.choices[0].logprobs.content
                assert b"".join(bytes(entry.bytes) for entry in entries) == b"a b"

    run(main)


def test_every_field_reaches_the_engine() -> None:
    async def main() -> None:
        async with front("abc") as site, openai_client(site) as client:
            await client.chat.completions.create(
                model=MODEL,
                messages=HI,
                max_completion_tokens=9,
                temperature=0.5,
                top_p=0.9,
                presence_penalty=0.1,
                frequency_penalty=-0.2,
                logit_bias={"5": 1.5, "70": -100},
                seed=3,
                user="someone",
                response_format={"type": "text"},
                tools=[],
                tool_choice="none",
                metadata={"a": "b"},
                extra_body={
                    "top_k": 40,
                    "min_p": 0.05,
                    "repetition_penalty": 1.1,
                    "min_tokens": 2,
                    "ignore_eos": True,
                    "stop_token_ids": [7],
                    "priority": -3,
                    "cache_salt": "mine",
                },
            )
            request = site.service.requests[0]
            sampling = request.sampling
            assert (request.priority, request.cache_salt, request.tenant) == (-3, "mine", "someone")
            assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (9, 2, True)
            assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
            assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.1, -0.2)
            assert sampling.repetition_penalty == 1.1
            assert sampling.logit_bias == ((5, 1.5), (70, -100.0))
            assert (sampling.seed, sampling.stop_token_ids, sampling.logprobs) == (3, (7,), None)

    run(main)


def test_the_request_id_of_the_client_comes_back_if_it_is_harmless() -> None:
    async def main() -> None:
        async with front("abc") as site:
            for given, comes_back in (("my-id_1", True), ("spaces are odd", False), ("x" * 200, False)):
                for path in ("/v1/models", "/nowhere"):
                    _, headers, _ = await site.request("GET", path, headers={"X-Request-Id": given})
                    assert (headers["x-request-id"] == given) == comes_back

    run(main)


# ---- failures


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


@pytest.mark.parametrize("refusal", [QueueFullError(100, 7.2), ShuttingDownError()])
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


# ---- clients that leave


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
        async with front(hold_at=0) as site:
            async with httpx.AsyncClient() as client:
                url = f"http://127.0.0.1:{site.port}/v1/chat/completions"
                with pytest.raises(httpx.ReadTimeout):
                    await client.post(url, json={"model": MODEL, "messages": HI}, timeout=0.1)
            await site.service.some_cancelled.wait()

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
            exchange = Exchange(Request("POST", "/", "", {}, b"", keep_alive=True, http10=False), sink)
            timeline = Timeline(0.0)
            stream = GenerationStream(RequestRecord("r", "", 0, 1, timeline), lambda request_id, reason: None)
            pieces = site.tokenizer.pieces
            choice = Choice(0, stream, OutputText(pieces, (), False), FrontMetrics().begin(0.0))
            form = CompletionFormat(AnswerHead("r", 0, MODEL), pieces, logprobs=False, include_usage=False)
            answer = Answer([choice], form, num_prompt_tokens=1, choices_per_prompt=1, prompt_param="prompt")
            sending = asyncio.create_task(answer.send_stream(exchange, include_usage=False))
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
