"""What real clients send first is answered, or refused by name and value. The bodies are those that the libraries send
by default or with their usual settings."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipstream.router.protocol.messages import unpack_ids
from tests.support.router.fake_cluster import events_of, front, run

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CACHED = {"cache_control": {"type": "ephemeral"}}

# name, path, body, what the header names
ANSWERED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "langchain with reasoning_effort",
        CHAT,
        {"messages": HI, "reasoning_effort": "low", "stream": False, "n": 1, "temperature": 0.7},
        "",
    ),
    ("langchain that streams", CHAT, {"messages": HI, "max_completion_tokens": 64, **USAGE}, ""),
    (
        "litellm",
        CHAT,
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be brief.", **CACHED}]},
                {"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]},
                {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting.", "function_call": None},
                {"role": "user", "content": "bye"},
            ],
            "thinking": {"type": "enabled", "budget_tokens": 512},
            "extra_headers": {},
            "drop_params": True,
        },
        "thinking, extra_headers, drop_params, messages.*.content.*.cache_control",
    ),
    (
        "opencode without tools",
        CHAT,
        {"messages": HI, "max_tokens": 32000, "temperature": 0.55, "top_p": 1, "tool_choice": "auto", **USAGE},
        "",
    ),
    (
        "continue",
        CHAT,
        {"messages": HI, "max_tokens": 4096, "stream": True, "parallel_tool_calls": False, "tools": []},
        "",
    ),
    ("aider", CHAT, {"messages": HI, "temperature": 0, "stream": True}, ""),
    (
        "ai sdk",
        CHAT,
        {
            "messages": HI,
            "reasoning_effort": "medium",
            "verbosity": "low",
            "store": True,
            "metadata": {"a": "b"},
            "prediction": {"type": "content", "content": "Hello"},
            "service_tier": "flex",
            "prompt_cache_key": "k",
            "prompt_cache_retention": "24h",
            "safety_identifier": "u",
            "seed": 7,
            **USAGE,
        },
        "",
    ),
    (
        "openai's own, all hints",
        CHAT,
        {"messages": HI, "stream": True, "stream_options": {"include_obfuscation": False, "include_usage": True}},
        "",
    ),
    (
        "an agent's last turn",
        CHAT,
        {"messages": HI, "tools": [FUNCTION], "tool_choice": "none", "parallel_tool_calls": True},
        "",
    ),
    ("opencode, cline", CHAT, {"messages": HI, "tools": [FUNCTION], "tool_choice": "auto", **USAGE}, ""),
    (
        "an agent's history",
        CHAT,
        {
            "messages": [
                *HI,
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c", **FUNCTION}]},
                {"role": "tool", "tool_call_id": "c", "content": "42"},
            ]
        },
        "messages.*.tool_calls.*.function.parameters",
    ),
    (
        "an editor that keeps ids in its history",
        CHAT,
        {"messages": [{"id": "1", "role": "user", "content": "hi", "createdAt": "2026-11-25"}], "cache_prompt": True},
        "cache_prompt, messages.*.id, messages.*.createdAt",
    ),
    (
        "llama.cpp's web page",
        COMPLETIONS,
        {"prompt": "a", "n_predict": -1, "cache_prompt": True, "id_slot": 0},
        "n_predict, cache_prompt, id_slot",
    ),
    ("a benchmark", COMPLETIONS, {"prompt": "a", "max_tokens": 10**6, "best_of": 1, "logprobs": None, **USAGE}, ""),
]
# name, body, the field of the refusal, and what it says
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "a picture",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
        "messages.0.content.1.type",
        "content parts of type 'image_url' are not supported; accepted: 'text'",
    ),
    (
        "speech",
        {"messages": HI, "modalities": ["text", "audio"], "audio": {"voice": "x"}},
        "modalities",
        "accepted: ['text']",
    ),
    (
        "a tool's answer without its call",
        {"messages": [*HI, {"role": "tool", "content": "42"}]},
        "messages.1.tool_call_id",
        "required",
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "ignored"), [case[1:] for case in ANSWERED], ids=[case[0] for case in ANSWERED]
)
def test_first_requests_are_answered(path: str, body: dict[str, Any], ignored: str) -> None:
    async def main() -> None:
        async with front("Hello there") as site:
            status, headers, answer = await site.post(path, **body)
            assert status == 200, answer
            assert headers.get("x-slipstream-ignored", "") == ignored.lower()
            if body.get("stream"):
                assert events_of(answer)[-1] == "[DONE]"

    run(main)


@pytest.mark.parametrize(("body", "param", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_not_there_is_refused_by_name_and_value(body: dict[str, Any], param: str, words: str) -> None:
    async def main() -> None:
        async with front("Hello there") as site:
            status, _, answer = await site.post(CHAT, **body)
            error = orjson.loads(answer)["error"]
            assert (status, error["param"]) == (400, param)
            assert words in error["message"]
            assert site.service.requests == []

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_who_asks_for_a_service_tier_is_told_which_one_it_got(stream: bool) -> None:
    async def main() -> None:
        async with front("Hello there") as site:
            _, _, answer = await site.post(CHAT, messages=HI, service_tier="priority", stream=stream)
            parts = [part for part in events_of(answer) if isinstance(part, dict)] if stream else [orjson.loads(answer)]
            assert {part["service_tier"] for part in parts} == {"default"}
            _, _, answer = await site.post(CHAT, messages=HI)
            assert "service_tier" not in orjson.loads(answer)

    run(main)


SHOWS_EFFORT = "{{ reasoning_effort or 'usual' }}{{ ' off' if enable_thinking is defined and not enable_thinking }}"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "usual"),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "none"}, "none off"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "none"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}}, "max"),
    ],
)
def test_the_chat_template_gets_the_reasoning_effort(fields: dict[str, Any], prompt: str) -> None:
    async def main() -> None:
        async with front("abc", chat_template=SHOWS_EFFORT) as site:
            status, _, answer = await site.post("/tokenize", prompt=prompt, add_special_tokens=False)
            expected = orjson.loads(answer)["tokens"]
            status, _, answer = await site.post(CHAT, messages=HI, **fields)
            assert status == 200, answer
            assert list(unpack_ids(site.service.requests[-1].prompt_ids)) == expected

    run(main)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{ messages[0].reasoning_content }}", "Hm."),
        ("{{ messages[0]['reasoning'] }}", "Hm."),
        ("{{ messages[0] | length }}{# reasoning: none #}", "2"),
    ],
)
@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_what_an_assistant_thought_goes_where_the_template_looks_for_it(template: str, shown: str, field: str) -> None:
    async def main() -> None:
        async with front("abc", chat_template=template) as site:
            expected = orjson.loads((await site.post("/tokenize", prompt=shown, add_special_tokens=False))[2])["tokens"]
            said = {"role": "assistant", "content": "hi", field: "Hm."}
            assert orjson.loads((await site.post("/tokenize", messages=[said]))[2])["tokens"] == expected

    run(main)
