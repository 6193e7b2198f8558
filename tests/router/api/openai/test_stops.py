"""Where answers of the OpenAI API end: stop strings and stop tokens, and the logprobs up to there."""

from __future__ import annotations

import math

import orjson
import pytest

from slipstream.router.protocol.messages import TokenLogprob
from slipstream.router.text.tokenizer import Tokenizer
from tests.support.router.fake_cluster import END, MODEL, Script, events_of, front, openai_client, run

TEXT = "Hello wörld 🙂, this is it."
HI = [{"role": "user", "content": "hi"}]


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_a_delta", [1, 100])
def test_a_stop_string_ends_the_text_only_after_min_tokens(stream: bool, tokens_a_delta: int) -> None:
    async def main() -> None:
        async with front("ab ab ab ab ab ab", tokens_a_delta=tokens_a_delta) as site:
            ids = site.tokenizer._tokenizer.encode("ab ab ab ab ab ab", add_special_tokens=False).ids
            for min_tokens in range(len(ids)):
                sent = {"messages": HI, "stop": ["b"], "min_tokens": min_tokens, "logprobs": True}
                status, _, body = await site.post("/v1/chat/completions", **sent, stream=stream)
                assert status == 200
                if stream:
                    choices = [event["choices"][0] for event in events_of(body)[:-1]]
                    text = "".join(choice["delta"].get("content", "") for choice in choices)
                    reason = choices[-1]["finish_reason"]
                else:
                    choice = orjson.loads(body)["choices"][0]
                    text, reason = choice["message"]["content"], choice["finish_reason"]
                protected = site.tokenizer._tokenizer.decode(ids[:min_tokens])
                whole = site.tokenizer._tokenizer.decode(ids)
                stop_at = whole.find("b", len(protected))
                assert (text, reason) == ((whole, "length") if stop_at < 0 else (whole[:stop_at], "stop"))

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


def tokens_by_bytes(tokenizer: Tokenizer) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for token_id in range(tokenizer.vocab_size):
        found.setdefault(tokenizer.pieces.bytes_of(token_id), []).append(token_id)
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chosen", [0, 2, 5, None])
def test_completion_logprobs_have_as_many_entries_as_asked_for(stream: bool, chosen: int | None) -> None:
    """Of parts of characters, of an id without a token, and of two tokens with the same text."""

    async def main() -> None:
        async with front("x") as site:
            (one,) = tokens_by_bytes(site.tokenizer)[b"\xe2"]
            (two,) = tokens_by_bytes(site.tokenizer)[b"\x80"]
            (letter,) = tokens_by_bytes(site.tokenizer)[b"a"]
            pieces = site.tokenizer.pieces
            pieces._bytes |= {4000: b"a", 4001: b"", 4002: b""}  # as where byte fallback spells a letter
            alternatives = [(one, -0.1), (two, -0.2), (letter, -0.3), (4000, -0.4), (4001, -0.5), (4002, -math.inf)]
            token_id = alternatives[chosen][0] if chosen is not None else 5
            value = alternatives[chosen][1] if chosen is not None else -7.0
            site.service.script = lambda request: Script([token_id])
            site.service._logprobs = lambda request, ids: (TokenLogprob(value, tuple(alternatives)),)  # type: ignore[method-assign]
            _, _, body = await site.post("/v1/completions", prompt="x", logprobs=6, stream=stream)
            choices = [event["choices"][0] for event in events_of(body)[:-1]] if stream else None
            (logprobs,) = [c["logprobs"] for c in choices or [orjson.loads(body)["choices"][0]] if c["logprobs"]]
            (top,) = logprobs["top_logprobs"]
            values = [-0.1, -0.2, -0.3, -0.4, -0.5, -9999.0]
            assert sorted(top.values()) == sorted(values if chosen is not None else [*values, -7.0])
            assert [top[token] for token in logprobs["tokens"]] == logprobs["token_logprobs"]
            assert {"bytes:\\xe2", "bytes:\\x80", "a"} <= set(top)

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
