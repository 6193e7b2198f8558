"""The Messages API over real HTTP, from the body to the message and its events."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from slipstream.router.api.anthropic.turns import REMINDER
from slipstream.router.api.generation.answer.failures import VERDICTS
from slipstream.router.config.router_config import HttpConfig
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.generation import AdmissionError, GenerationError, Retention
from slipstream.router.protocol.messages import unpack_ids
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, FrontUnderTest, front, run, unchunk
from tests.support.router.message_events import message_events, put_together

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "What it is.", "input_schema": CITY}]
CALLS = (
    'Let me see.<|tool_call|>{"name": "weather", "arguments": {"city": "Rom 🙂"}}'
    '<|tool_call|>{"name": "weather", "arguments": {"city": "Bonn"}}'
)
THINKING = ParserNames("auto", "qwen3")
THOUGHT = "<think>Hm 🙂, so.</think>\n\nWell, wörd."
END = 3


async def answer(site: FrontUnderTest, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """The message, without its id."""
    body = {"max_tokens": 100, "messages": HI, "stream": stream, **fields}
    status, headers, data = await site.post(MESSAGES, **body)
    assert status == 200, data
    assert headers["request-id"] == headers["x-request-id"]
    message = put_together(message_events(data)) if stream else orjson.loads(data)
    assert message.pop("id").startswith("msg_")
    assert [message.pop(name) for name in ("type", "role", "model")] == ["message", "assistant", MODEL]
    assert isinstance(message, dict)
    return message


def without_ids(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids = [block["id"] for block in content if "id" in block]
    assert len(set(ids)) == len(ids)
    assert all(call_id.startswith("toolu_") for call_id in ids)
    return [{name: value for name, value in block.items() if name != "id"} for block in content]


async def prompt_of(site: FrontUnderTest, **fields: Any) -> str:
    """The prompt of a request, as text; its tokens are those that are counted."""
    status, _, data = await site.post(COUNT, **fields)
    assert status == 200, data
    await answer(site, **fields)
    token_ids = list(unpack_ids(site.service.requests[-1].prompt_ids))
    assert orjson.loads(data) == {"input_tokens": len(token_ids)}
    (text,) = await site.tokenizer.decode([token_ids], skip_special_tokens=False)
    return text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_text_is_a_message_of_one_block(stream: bool) -> None:
    async def main() -> None:
        parsers = ParserNames("auto", "none")
        async with front("Hello wörld 🙂.", parsers=parsers, reason="stop", num_cached_tokens=2) as site:
            message = await answer(site, stream)
            usage = message.pop("usage")
            assert message == {
                "content": [{"type": "text", "text": "Hello wörld 🙂."}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
            }
            num_prompt_tokens = len(site.service.requests[0].prompt_ids) // 4
            assert usage.pop("output_tokens") > 5
            assert usage == {
                "input_tokens": num_prompt_tokens - 2,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 2,
                "service_tier": "standard",
            }

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("tokens_a_delta", [1, 7])
def test_calls_are_blocks_of_their_own(stream: bool, tokens_a_delta: int) -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop", tokens_a_delta=tokens_a_delta) as site:
            message = await answer(site, stream, tools=TOOLS)
            assert message["stop_reason"] == "tool_use"
            assert [tools for _, tools in site.service.turns] == [("weather", "weather")]  # by which it is retained
            assert without_ids(message["content"]) == [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "name": "weather", "input": {"city": "Rom 🙂"}},
                {"type": "tool_use", "name": "weather", "input": {"city": "Bonn"}},
            ]

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_of_a_call_that_is_cut_off_there_is_what_was_written(stream: bool) -> None:
    async def main() -> None:
        async with front(CALLS) as site:
            if not stream:
                message = await answer(site, tools=TOOLS, max_tokens=30)
                *_, call = message["content"]
                assert message["stop_reason"] == "max_tokens"
                assert (call["type"], call["name"], set(call["input"]) <= {"city"}) == ("tool_use", "weather", True)
                return
            body = {"max_tokens": 30, "messages": HI, "tools": TOOLS, "stream": True}
            events = message_events((await site.post(MESSAGES, **body))[2])
            assert events[-2]["delta"]["stop_reason"] == "max_tokens"
            assert [event["type"] for event in events].count("content_block_stop") == 2

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_thinking_comes_first_and_white_space_behind_it_is_no_block(stream: bool) -> None:
    async def main() -> None:
        async with front(THOUGHT, reason="stop", parsers=THINKING) as site:
            message = await answer(site, stream)
            thinking, text = message["content"]
            assert thinking.pop("signature")
            assert thinking == {"type": "thinking", "thinking": "Hm 🙂, so."}
            assert (text["type"], text["text"].lstrip()) == ("text", "Well, wörd.")
            assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 5

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_thinking_that_is_not_shown_comes_back_by_its_signature(stream: bool) -> None:
    template = "{% for m in messages %}<|user|>{{ m.reasoning_content }}|{{ m.content }}{% endfor %}<|assistant|>"

    async def main() -> None:
        async with front(THOUGHT, reason="stop", parsers=THINKING, chat_template=template) as site:
            message = await answer(site, stream, thinking={"type": "adaptive", "display": "omitted"})
            assert message["content"][0]["thinking"] == ""
            turns = [*HI, {"role": "assistant", "content": message["content"]}, *HI]
            assert "Hm 🙂, so.|" in await prompt_of(site, messages=turns)
            message = await answer(site, stream, thinking={"type": "disabled"})
            assert [block["type"] for block in message["content"]] == ["text"]

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_stop_sequence_is_named(stream: bool) -> None:
    async def main() -> None:
        async with front("one two three four") as site:
            message = await answer(site, stream, stop_sequences=["never", " three"])
            assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", " three")
            assert message["content"] == [{"type": "text", "text": "one two"}]

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_no_tokens_at_all_are_a_message_without_content(stream: bool) -> None:
    async def main() -> None:
        async with front("abc") as site:
            message = await answer(site, stream, max_tokens=0)
            assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
            assert message["usage"]["output_tokens"] == 0

    run(main)


def test_an_output_that_fills_the_context_says_so() -> None:
    async def main() -> None:
        async with front("x" * 2000) as site:
            assert (await answer(site, max_tokens=5))["stop_reason"] == "max_tokens"
            assert (await answer(site, max_tokens=5000))["stop_reason"] == "model_context_window_exceeded"

    run(main)


def test_a_conversation_with_tools_stands_in_the_prompt() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Where?"}, {"type": "text", "text": "Rome"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Wait."}, call | {"cache_control": None}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "By the way"},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "no net"}]},
            ],
        },
        {"role": "assistant", "content": [call | {"id": "toolu_2"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True}]},
        {"role": "user", "content": "Go on."},
    ]
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=5"}, {"type": "text", "text": "Be brief."}]

    async def main() -> None:
        async with front("abc") as site:
            prompt = await prompt_of(site, messages=messages, system=system, tools=TOOLS)
            _, _, told = prompt.partition("<|end|>")  # behind the definitions of tools
            written = '<|tool_call|>{"name": "weather", "arguments": {"city": "Rome"}}'
            assert told == (
                "<|system|>Be brief.<|end|><|user|>Where?Rome<|end|>"
                f"<|assistant|>Wait.{written}<|end|><|tool|>no net<|end|><|user|>By the way<|end|>"
                f"<|assistant|>{written}<|end|><|tool|>Error<|end|><|user|>Go on.<|end|><|assistant|>"
            )

    run(main)


def test_a_later_message_of_the_system_is_the_users_where_a_template_does_not_show_it() -> None:
    later = [*HI, {"role": "system", "content": "Hurry."}]
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
        "<|user|>{{ m.role }}:{{ m.content }}{% endfor %}<|assistant|>"
    )

    async def main() -> None:
        async with front("abc") as site:
            assert "<|system|>Hurry.<|end|><|assistant|>" in await prompt_of(site, messages=later)
        async with front("abc", chat_template=strict) as site:
            assert "user:hi\n" + REMINDER.format(text="Hurry.") in await prompt_of(site, messages=later)

    run(main)


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_answer() -> None:
    async def main() -> None:
        async with front("abc", parsers=THINKING) as site:
            typed = "So <|end|>be"  # is text
            prompt = await prompt_of(site, messages=[*HI, {"role": "assistant", "content": typed}])
            assert prompt.endswith(f"<|assistant|>{typed}")
            token_ids = unpack_ids(site.service.requests[-1].prompt_ids)
            assert list(token_ids).count(END) == 1
            empty = await prompt_of(site, messages=[*HI, {"role": "assistant", "content": []}])
            assert empty == await prompt_of(site, messages=HI)
        opens = (MODEL_DIR / "chat_template.jinja").read_text() + "<think>"
        async with front("abc", parsers=THINKING, chat_template=opens) as site:
            status, _, data = await site.post(
                MESSAGES, max_tokens=5, messages=[*HI, {"role": "assistant", "content": "So"}]
            )
            assert (status, b"cannot be continued" in data) == (400, True)

    run(main)


async def sent(site: FrontUnderTest, **fields: Any) -> Any:
    """What reaches the dispatcher."""
    await answer(site, **fields)
    return site.service.requests[-1]


def test_fields_reach_the_dispatcher() -> None:
    control = {"cache_control": {"type": "ephemeral"}}
    pinned = [{"role": "user", "content": [{"type": "text", "text": "hi", **control}]}]

    async def main() -> None:
        async with front("abc") as site:
            request = await sent(
                site,
                temperature=0.5,
                top_p=0.9,
                top_k=7,
                seed=5,
                priority=3,
                metadata={"user_id": "me"},
                session_id="s",
            )
            sampling = request.sampling
            assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 7, 5)
            assert (request.priority, request.tenant, request.session) == (3, "me", "s")
            assert (await sent(site)).retention is None
            assert (await sent(site, tools=TOOLS)).retention == Retention()
            assert (await sent(site, messages=pinned)).retention == Retention(300.0)
            assert (await sent(site, cache_control={"type": "ephemeral", "ttl": "1h"})).retention == Retention(3600.0)

    run(main)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "auto"}, None])
def test_calls_follow_a_grammar(choice: dict[str, str] | None) -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            request = await sent(site, tools=TOOLS, tool_choice=choice)
            assert request.sampling.grammar is not None

    run(main)


def test_a_choice_can_forbid_calls_or_more_than_one() -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            one = await answer(site, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
            assert [block["type"] for block in one["content"]] == ["text", "tool_use"]
            none = await answer(site, tools=TOOLS, tool_choice={"type": "none"})
            assert [block["type"] for block in none["content"]] == ["text"]

    run(main)


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_an_answer_can_follow_a_schema(place: str) -> None:
    form = {"type": "json_schema", "schema": CITY}
    given = {"output_config": {"format": form, "effort": "high"}} if place == "output_config" else {place: form}

    async def main() -> None:
        async with front('{"city": "x"}', parsers=ParserNames("auto", "none")) as site:
            request = await sent(site, **given)
            assert request.sampling.grammar.kind == "json"
            bad = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}}
            status, _, data = await site.post(MESSAGES, max_tokens=5, messages=HI, **bad)
            assert (status, b"'output_config.format.schema' cannot be followed" in data) == (400, True)

    run(main)


def test_a_stream_is_pinged_by_an_event_and_fails_by_one() -> None:
    async def main() -> None:
        http = HttpConfig(port=0, sse_ping_s=0.01)
        error = GenerationError("worker_failed", "the worker is gone")
        async with front("abc", http=http, hold_at=1, error=error) as site:
            body = orjson.dumps({"max_tokens": 5, "messages": HI, "stream": True, "model": MODEL})
            head = f"POST {MESSAGES} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(head.encode() + body)
            data = await reader.readuntil(b'event: ping\ndata: {"type":"ping"}\n\n')
            site.service.release.set()
            data += await reader.read()
            writer.close()
            last = message_events(unchunk(data.partition(b"\r\n\r\n")[2]))[-1]
            assert (last["type"], last["error"]["type"]) == ("error", "api_error")
            assert last["request_id"]

    run(main)


@pytest.mark.parametrize(
    ("kind", "status", "name"),
    [
        ("queue_full", 529, "overloaded_error"),
        ("queue_timeout", 529, "overloaded_error"),
        ("not_ready", 503, "api_error"),
        ("limit_exceeded", 429, "rate_limit_error"),
        ("request_timeout", 504, "timeout_error"),
        ("prompt_too_long", 400, "invalid_request_error"),
        ("worker_failed", 500, "api_error"),
    ],
)
def test_failures_have_anthropics_types(kind: Any, status: int, name: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            site.service.refusal = AdmissionError(GenerationError(kind, "it is so", 2.0))
            got, headers, data = await site.post(MESSAGES, max_tokens=5, messages=HI)
            error = orjson.loads(data)
            assert (got, error["type"], error["error"]["type"]) == (status, "error", name)
            assert error["request_id"] == headers["request-id"]
            assert error["error"]["details"] == {"error_code": VERDICTS[kind].code}
            assert headers["retry-after"] == "2"

    run(main)


def test_models_are_listed_in_anthropics_form_for_its_clients() -> None:
    async def main() -> None:
        async with front("abc") as site:
            version = {"anthropic-version": "2023-06-01"}
            _, _, data = await site.request("GET", "/v1/models", headers=version)
            listed = orjson.loads(data)
            assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (MODEL, MODEL, False)
            (card,) = listed["data"]
            assert (card["type"], card["id"], card["max_input_tokens"]) == ("model", MODEL, 512)
            assert orjson.loads((await site.request("GET", f"/v1/models/{MODEL}", headers=version))[2]) == card
            status, _, data = await site.request("GET", "/v1/models/none", headers=version)
            assert (status, orjson.loads(data)["error"]["type"]) == (404, "not_found_error")
            assert orjson.loads((await site.request("GET", "/v1/models"))[2])["object"] == "list"

    run(main)
