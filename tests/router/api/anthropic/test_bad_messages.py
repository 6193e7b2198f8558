"""Whatever is wrong with a message gets a 4xx in Anthropic's form that names the field: never a 5xx, never silence."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.router.api.anthropic.chat_translation import chat_of, with_messages
from slipstream.router.api.anthropic.request_body import CountTokensRequest, MessagesRequest
from slipstream.router.api.openai.body.parsing import parse_body
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.messages import MAX_MESSAGES
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from tests.support.router.fake_cluster import MODEL, front, run

MESSAGES = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
MISSING = object()
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}


def said(*content: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(content)}]


def turns(*contents: Any) -> list[dict[str, Any]]:
    """Messages of the user and the assistant in turn."""
    return [
        {"role": "assistant" if index % 2 else "user", "content": content} for index, content in enumerate(contents)
    ]


# field, wrong value, what the message says of it besides its name
BAD: list[tuple[str, Any, str]] = [
    ("model", MISSING, "Missing"),
    ("model", 5, "string"),
    ("max_tokens", MISSING, "Missing"),
    ("max_tokens", -1, "-1"),
    ("max_tokens", True, "integer"),
    ("messages", MISSING, "Missing"),
    ("messages", [], "at least 1"),
    ("messages", "hi", "array"),
    ("messages", [5], "messages.0"),
    ("messages", [{"role": "user", "content": []}], "messages.0.content"),
    ("messages", [{"role": "tool", "content": "x"}], "messages.0.role"),
    ("messages", [{"role": "user"}], "messages.0.content"),
    ("messages", said({"type": "text"}), "messages.0.content.0.text"),
    ("messages", said({"type": "text", "text": 5}), "messages.0.content.0.text"),
    ("messages", said(5), "messages.0.content.0"),
    ("messages", said({"type": "image", "source": {}}), "'image' are not supported"),
    ("messages", said({"type": "document", "source": {}}), "'document' are not supported"),
    ("messages", said({"type": "server_tool_use"}), "'server_tool_use' are not supported"),
    ("messages", said(CALL), "messages.0.content.0.type"),
    ("messages", said(RESULT, role="assistant"), "messages.0.content.0.type"),
    ("messages", said(RESULT, role="system"), "messages.0.content.0.type"),
    ("messages", said(RESULT), "messages.0.content.0"),
    ("messages", turns("a", [CALL]), "messages.1"),
    ("messages", turns("a", [CALL], "b"), "messages.1"),
    ("messages", turns("a", [CALL, CALL], [RESULT]), "messages.1.content.1.id"),
    ("messages", turns("a", [CALL], [RESULT, RESULT]), "messages.2.content.1"),
    ("messages", turns("a", [CALL], [RESULT | {"content": [{"type": "image"}]}]), "messages.2.content.0.content.0"),
    ("messages", turns("a", [CALL | {"input": "x"}], [RESULT]), "messages.1.content.0.input"),
    ("messages", turns("a", "b "), "whitespace"),
    ("messages", HI * (MAX_MESSAGES + 1), str(MAX_MESSAGES)),
    ("messages", said(*[{"type": "text", "text": ""}] * (MAX_MESSAGES + 1)), str(MAX_MESSAGES)),
    ("messages", said(*[CACHED] * 5), "cache_control"),
    ("messages", said(CACHED | {"cache_control": {"type": "ephemeral", "ttl": "2h"}}), "cache_control.ttl"),
    ("cache_control", {"type": "forever"}, "cache_control.type"),
    ("system", 5, "system"),
    ("system", [{"type": "image"}], "system.0"),
    ("temperature", 1.1, "1.1"),
    ("top_p", 0, "0"),
    ("top_k", -1, "-1"),
    ("stop_sequences", [""], "stop_sequences.0"),
    ("stop_sequences", "x", "array"),
    ("stop_sequences", ["x"] * 17, "16"),
    ("stream", "yes", "boolean"),
    ("metadata", {"user_id": 5}, "metadata.user_id"),
    ("service_tier", "flex", "auto"),
    ("thinking", {"type": "on"}, "thinking.type"),
    ("thinking", {"type": "enabled"}, "thinking.budget_tokens"),
    ("thinking", {"type": "enabled", "budget_tokens": 100}, "1024"),
    ("thinking", {"type": "enabled", "budget_tokens": 2000}, "max_tokens"),
    ("thinking", {"type": "adaptive", "budget_tokens": 2000}, "thinking.budget_tokens"),
    ("output_config", {"effort": "huge"}, "output_config.effort"),
    ("output_config", {"format": {"type": "json_schema"}}, "output_config.format.schema"),
    ("output_config", {"task_budget": {"type": "tokens", "total": 5}}, "output_config.task_budget"),
    ("tools", [{"name": "f"}], "tools.0.input_schema"),
    ("tools", [{"name": "a b", "input_schema": {}}], "tools.0.name"),
    ("tools", [TOOL, TOOL], "tools.1.name"),
    ("tools", [{"type": "bash_20250124", "name": "bash"}], "'bash_20250124' are not supported"),
    ("tools", [TOOL | {"strict": True, "input_schema": {"type": "strange"}}], "tools.0.input_schema"),
    ("tool_choice", {"type": "any"}, "'tools'"),
    ("tool_choice", {"type": "tool"}, "tool_choice.name"),
    ("tool_choice", {"type": "auto", "name": "f"}, "tool_choice.name"),
    ("tool_choice", "auto", "tool_choice"),
    ("mcp_servers", [{"type": "url"}], "mcp_servers"),
    ("container", "c", "container"),
    ("speed", "fast", "'fast'"),
    ("thread", {"type": "create"}, "thread"),
    ("compaction", {"type": "x"}, "compaction"),
    ("context_management", {"edits": [{"type": "compact_20260112"}]}, "context_management.edits.0.type"),
]


@pytest.mark.parametrize(("field", "value", "said_of_it"), BAD, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(BAD)])
def test_a_wrong_field_is_a_400_that_names_it(field: str, value: Any, said_of_it: str) -> None:
    body = {"model": MODEL, "max_tokens": 50, "messages": HI, field: value}
    if value is MISSING:
        del body[field]

    async def main() -> None:
        async with front("abc") as site:
            status, _, data = await site.request("POST", MESSAGES, body)
            error = orjson.loads(data)
            assert (status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error"), error
            message = error["error"]["message"]
            assert field in message
            assert said_of_it in message

    run(main)


def test_a_choice_of_a_tool_that_there_is_not_is_named() -> None:
    body = {
        "model": MODEL,
        "max_tokens": 5,
        "messages": HI,
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "g"},
    }
    with pytest.raises(HttpError, match=r"tool_choice\.name.*'g'"):
        parsed(MessagesRequest, body)


def test_clients_are_told_that_they_can_go_on_without_a_thread() -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, data = await site.post(MESSAGES, max_tokens=5, messages=HI, thread={"type": "create"})
            details = orjson.loads(data)["error"]["details"]
            assert (status, details) == (400, {"error_code": "thread_unsupported_request"})

    run(main)


def test_unknown_fields_are_ignored_and_named() -> None:
    async def main() -> None:
        async with front("abc") as site:
            content = [{"type": "text", "text": "hi", "mood": 1}]
            status, headers, _ = await site.post(MESSAGES, max_tokens=5, messages=said(*content), made_up=1)
            assert status == 200
            assert set(headers["x-slipstream-ignored"].split(", ")) == {"made_up", "messages.*.content.*.mood"}

    run(main)


def test_null_means_the_default_in_every_optional_field() -> None:
    body = dict.fromkeys(MessagesRequest.model_fields) | {"model": MODEL, "max_tokens": 5, "messages": HI}
    assert parsed(MessagesRequest, body).max_tokens == 5


def test_what_claude_code_sends_is_accepted() -> None:
    body = {
        "model": MODEL,
        "max_tokens": 32000,
        "messages": [*said(CACHED), {"role": "system", "content": "Agent types: none."}],
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2;"}, CACHED],
        "tools": [TOOL | {"description": "Runs it.", "eager_input_streaming": True, "defer_loading": False}],
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }
    parsed(MessagesRequest, body)


def parsed(form: Any, body: Any) -> Any:
    return parse_body(Request("POST", MESSAGES, "", {}, orjson.dumps(body), keep_alive=True, http10=False), form)


def translated(form: Any, body: Any) -> ChatRequest | HttpError:
    try:
        checked = parsed(form, body)
        return with_messages(chat_of(checked), checked, None)
    except HttpError as error:
        return error


NAMES = sorted({*MessagesRequest.model_fields, "made_up"})
WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "system",
        "text",
        "tool_use",
        "tool_result",
        "thinking",
        "image",
        "t1",
        "t2",
        "f",
        "",
        "ephemeral",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3000) | st.floats(-1, 2) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "id", "tool_use_id", "name", "input", "cache_control", "effort"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BLOCKS = st.sampled_from(
    [CALL, RESULT, CALL | {"id": "t2"}, RESULT | {"tool_use_id": "t2"}, CACHED, {"type": "thinking"}]
)
CONVERSATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": st.just("x") | st.lists(BLOCKS | VALUES, max_size=3),
        }
    ),
    max_size=5,
)
BODIES = st.builds(
    lambda base, more: base | more,
    st.fixed_dictionaries({"model": st.just(MODEL), "max_tokens": st.just(50), "messages": CONVERSATIONS}),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
)


@given(BODIES)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_body_is_a_chat_or_a_named_mistake(body: dict[str, Any]) -> None:
    for form in (MessagesRequest, CountTokensRequest):
        chat = translated(form, body)
        if isinstance(chat, HttpError):
            assert (chat.status, bool(chat.message)) == (400, True)
        else:
            chat = chat.model_copy(update={"max_tokens": 1})  # a message may have none, a chat completion may not
            ChatRequest.model_validate_json(chat.model_dump_json(exclude_none=True, by_alias=True))
