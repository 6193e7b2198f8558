"""Answers of the OpenAI API, read with the real `openai` client."""

from __future__ import annotations

import openai
import orjson
import pytest

import slipstream
from slipstream.router.protocol.messages import unpack_ids
from tests.support.router.fake_cluster import MODEL, events_of, front, openai_client, run

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


def test_the_version_is_told() -> None:
    async def main() -> None:
        async with front() as site:
            status, _, body = await site.request("GET", "/version")
            assert (status, orjson.loads(body)) == (200, {"version": slipstream.__version__})

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
