"""Responses, whole and streamed: valid by OpenAI's document, and the same either way."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from slipstream.router.api.openai.responses.body.truncation import shortened
from slipstream.router.api.openai.schema.messages import ChatMessage
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.generation import GenerationError
from slipstream.router.protocol.messages import unpack_ids
from tests.support.router.fake_cluster import FrontUnderTest, front, openai_client, run
from tests.support.router.openai_schemas import check
from tests.support.router.response_events import put_together, response_events, without_ids

PATH = "/v1/responses"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "What the weather is.", "parameters": CITY}
PATCH = {"type": "custom", "name": "patch", "description": "Changes files."}
TIME = {"type": "function", "name": "time", "parameters": None, "strict": False}
CLOCKS = {
    "type": "namespace",
    "name": "mcp__clocks",
    "description": "Clocks.",
    "tools": [TIME, {**PATCH, "name": "set"}],
}
TOOLS = [WEATHER, PATCH, CLOCKS]
USER = {"role": "user", "content": "a"}
UNANSWERED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
NONSENSE = {"type": "nothing"}
FORMAT = {"type": "json_schema", "name": "x"}
BROKEN = {**WEATHER, "strict": True, "parameters": {"type": "object", "properties": {"a": {"pattern": "("}}}}
THINKING = ParserNames("auto", "qwen3")


def called(name: str, arguments: str) -> str:
    return f'<|tool_call|>{{"name": "{name}", "arguments": {arguments}}}'


CALL = called("weather", '{"city": "Rom 🙂"}')
CUSTOM = called("patch", json.dumps({"input": 'a "b"\n\\🙂'}))
CLOCK_CALLS = called("mcp__clocks__time", "{}") + called("mcp__clocks__set", '{"input": "x"}')
OUTPUTS = {
    "text": "Hello wörld 🙂, this is it.",
    "thought": "<think>Hm, so.</think>\n\nRome it is.",
    "call": f"<think>Hm.</think>\n\n{CALL}",
    "calls": f"Let me see. {CALL}{CUSTOM}{CLOCK_CALLS}",
    "blank": "  ",
    "empty": "",
}


def saying(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part]}


async def created(site: FrontUnderTest, **fields: Any) -> dict[str, Any]:
    status, _, answer = await site.post(PATH, **{"input": "hi", **fields})
    response: dict[str, Any] = orjson.loads(answer)
    assert status == 200, response
    check("Response", response)
    return response


async def streamed(site: FrontUnderTest, **fields: Any) -> list[dict[str, Any]]:
    status, headers, answer = await site.post(PATH, **{"input": "hi", "stream": True, **fields})
    assert status == 200, answer
    assert headers["content-type"].startswith("text/event-stream")
    events = response_events(answer)
    for event in events:
        check("ResponseStreamEvent", event)
    return events


async def refused(site: FrontUnderTest, **fields: Any) -> tuple[int, str, str, str]:
    status, _, answer = await site.post(PATH, **{"input": "hi", **fields})
    error = orjson.loads(answer)["error"]
    return status, error["param"], error["code"], error["message"]


def prompt_of(site: FrontUnderTest) -> str:
    token_ids = unpack_ids(site.service.requests[-1].prompt_ids)
    return str(site.tokenizer._tokenizer.decode(token_ids, skip_special_tokens=False))


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize(("tokens_a_delta", "reason", "summary"), [(1, "stop", "none"), (4, "length", "auto")])
def test_a_stream_makes_the_response_that_is_sent_whole(
    name: str, tokens_a_delta: int, reason: str, summary: str
) -> None:
    async def main() -> None:
        text = OUTPUTS[name]
        async with front(text, parsers=THINKING, reason=reason, tokens_a_delta=tokens_a_delta) as site:
            fields = {"tools": TOOLS, "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}}
            fields["reasoning"] = {"summary": summary}
            whole = await created(site, **fields)
            events = await streamed(site, **fields)
        assert events[-1]["type"] == f"response.{whole['status']}" == f"response.{ENDS[reason]}"
        assert without_ids(events[-1]["response"]) == without_ids(whole)
        assert put_together(events) == events[-1]["response"]["output"]
        assert events[0]["response"]["id"] == events[-1]["response"]["id"]

    run(main)


class City(BaseModel):
    city: str


ENDS = {"stop": "completed", "length": "incomplete"}


def test_items_are_reasoning_messages_and_calls_by_the_names_that_the_client_gave() -> None:
    async def main() -> None:
        async with front(f"<think>Hm.</think>\n\n{OUTPUTS['calls']}", parsers=THINKING, reason="stop") as site:
            response = await created(site, tools=TOOLS)
        thought, said, *calls = response["output"]
        assert (thought["type"], thought["content"][0]["text"], thought["summary"]) == ("reasoning", "Hm.", [])
        assert (said["role"], said["content"][0]["text"]) == ("assistant", "Let me see.")
        assert [(call["type"], call["name"], call.get("namespace")) for call in calls] == [
            ("function_call", "weather", None),
            ("custom_tool_call", "patch", None),
            ("function_call", "time", "mcp__clocks"),
            ("custom_tool_call", "set", "mcp__clocks"),
        ]
        assert json.loads(calls[0]["arguments"]) == {"city": "Rom 🙂"}
        assert calls[1]["input"] == 'a "b"\n\\🙂'
        assert {item["status"] for item in response["output"]} == {"completed"}
        assert len({item["id"] for item in response["output"]}) == 6
        details = response["usage"]["output_tokens_details"]
        assert 0 < details["reasoning_tokens"] < response["usage"]["output_tokens"]

    run(main)


def test_an_output_that_is_cut_off_is_incomplete_and_so_is_its_last_item() -> None:
    async def main() -> None:
        async with front(f"Hi. {CALL}", reason="length") as site:
            response = await created(site, tools=TOOLS, max_output_tokens=20)
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]

    run(main)


def test_logprobs_are_those_of_the_content_alone() -> None:
    async def main() -> None:
        said = f"Rome it is.{CALL}So it is 🙂."
        async with front(f"<think>Hm, so.</think>\n\n{said}", parsers=THINKING, reason="stop") as site:
            fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": TOOLS}
            whole = await created(site, **fields)
            events = await streamed(site, **fields)
        parts = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
        assert [part["text"].strip() for part in parts] == ["Rome it is.", "So it is 🙂."]
        for part in parts:
            raw = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
            assert raw.decode().strip() == part["text"].strip()
            assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        done = [event for event in events if event["type"] == "response.output_text.done"]
        shown = [entry for part in parts for entry in part["logprobs"]]
        assert [entry for event in deltas for entry in event["logprobs"]] == shown
        assert [entry for event in done for entry in event["logprobs"]] == shown

    run(main)


def test_a_failure_in_mid_stream_ends_it_with_an_error_and_a_failed_response() -> None:
    async def main() -> None:
        async with front("abc def", error=GenerationError("worker_failed", "the worker died")) as site:
            events = await streamed(site)
            assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
            assert events[-2]["message"] == "The worker died."
            assert events[-1]["response"]["error"] == {"code": "server_error", "message": "The worker died."}
            assert events[-1]["response"]["status"] == "failed"
            status, _, answer = await site.post(PATH, input="hi")
            assert (status, orjson.loads(answer)["error"]["code"]) == (500, "worker_failed")

    run(main)


def test_the_response_repeats_what_was_asked_for() -> None:
    async def main() -> None:
        asked: dict[str, Any] = {
            "instructions": "Be brief.",
            "temperature": 0.5,
            "top_p": 0.25,
            "max_output_tokens": 7,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "name": "weather"},
            "parallel_tool_calls": False,
            "text": {
                "format": {"type": "json_schema", "name": "city", "schema": CITY, "strict": True},
                "verbosity": "low",
            },
            "truncation": "auto",
            "metadata": {"a": "b"},
            "prompt_cache_key": "k",
            "safety_identifier": "s",
            "max_tool_calls": 3,
        }
        async with front("{}") as site:
            response = await created(site, reasoning={"effort": "low", "summary": "auto"}, user="me", **asked)
        assert response["tools"][0] == {**WEATHER, "strict": None}
        assert {name: response[name] for name in asked if name != "tools"} == {
            name: value for name, value in asked.items() if name != "tools"
        }
        assert response["reasoning"] == {"effort": "low", "summary": "auto"}
        assert (response["user"], response["object"], response["store"]) == ("me", "response", False)

    run(main)


def test_a_conversation_becomes_messages_with_calls_reasoning_and_results() -> None:
    async def main() -> None:
        items = [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'x "y"'},
            {"role": "user", "content": "Hurry."},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        ]
        async with front("abc") as site:
            await created(site, instructions="Speak English.", input=items, tools=TOOLS)
            prompt = prompt_of(site)
        places = [prompt.index(text) for text in ("Speak English.", "Weather?", "Rome", 'x \\"y', "sunny", "done")]
        assert places == sorted(places), prompt
        assert prompt.index("done") < prompt.index("Hurry.")

    run(main)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": [saying({"type": "input_text", "txt": "x"})]}, "input[0].content[0].text", "required"),
        ({"input": [saying({"type": "input_image"})]}, "input[0].content[0].type", "input_image"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "web_search_call"),
        ({"input": [USER, UNANSWERED]}, "input[1]", "No tool output found"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].call_id",
            "No tool call found for 'input[0].call_id', which is 'c'.",
        ),
        ({"input": []}, "input", "at least 1"),
        ({"input": 3}, "input", "array"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type", "file_search"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "mcp"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "unique"),
        ({"tools": [BROKEN]}, "tools[0].parameters", "cannot be followed"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name", "pattern"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "web_search"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "'f'"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "web_search"),
        ({"text": {"format": FORMAT}}, "text.format.schema", "required"),
        ({"text": {"format": {**FORMAT, "schema": NONSENSE}}}, "text.format.schema", "cannot be followed"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages", "input"),
        ({"prompt": {"id": "x"}}, "prompt", "not supported"),
        ({"background": True}, "background", "store"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "store"),
        ({"conversation": "conv_x"}, "conversation", "store"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"include": ["everything"]}, "include[0]", "everything"),
        ({"stream_options": {}}, "stream_options", "stream"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "huge"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(fields: dict[str, Any], param: str, said: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, at, _, message = await refused(site, **fields)
            assert (status, at) == (400, param), message
            assert said in message

    run(main)


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_what_may_stand_for_the_input_is_refused_by_name(field: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, answer = await site.post(PATH, **{field: [{"id": "x"}]})
            assert (status, orjson.loads(answer)["error"]["param"]) == (400, field)

    run(main)


def test_compaction_is_refused_by_name() -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, answer = await site.post(f"{PATH}/compact", input="hi")
            assert (status, orjson.loads(answer)["error"]["code"]) == (400, "unsupported_endpoint")

    run(main)


def test_tools_that_clients_list_unasked_are_left_out_and_named_in_the_answer() -> None:
    async def main() -> None:
        async with front("abc") as site:
            _, headers, answer = await site.post(PATH, input="hi", tools=[WEATHER, {"type": "web_search", "x": 1}])
            assert headers["x-slipstream-left-out-tools"] == "web_search"
            assert [tool["type"] for tool in orjson.loads(answer)["tools"]] == ["function"]
            assert "web_search" not in prompt_of(site)
            allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
            await created(site, tools=[WEATHER, {"type": "web_search"}], tool_choice=allowed)

    run(main)


def test_the_oldest_messages_are_left_out_where_truncation_is_auto() -> None:
    async def main() -> None:
        long = [{"role": "user", "content": f"Message {i}: " + "word " * 40} for i in range(30)]
        async with front("abc") as site:
            status, param, code, _ = await refused(site, input=long, instructions="Stay here.")
            assert (status, param, code) == (400, "input", "context_length_exceeded")
            await created(site, input=long, instructions="Stay here.", truncation="auto", max_output_tokens=50)
            prompt = prompt_of(site)
        assert "Stay here." in prompt
        assert "Message 29:" in prompt
        assert "Message 0:" not in prompt
        assert prompt.count("Message ") > 3

    run(main)


def test_what_is_left_by_truncation_begins_with_the_user() -> None:
    roles = ["system", "user", "assistant", "user", "assistant", "tool", "user"]
    messages = [ChatMessage.model_construct(role=role, content="word " * 20) for role in roles]
    for room in range(100, 700, 25):
        rest = shortened(messages, 700, room)
        assert rest is not None
        assert [message.role for message in rest[:2]] == ["system", "user"]
    of_tools = [messages[1], *[messages[4], messages[5]] * 3]
    rest = shortened(of_tools, 700, 300)
    assert rest is not None
    assert rest[0].role == "assistant"


def test_input_tokens_are_those_that_a_response_counts() -> None:
    async def main() -> None:
        async with front("abc") as site:
            fields: dict[str, Any] = {"input": "How many?", "instructions": "Count.", "tools": TOOLS}
            response = await created(site, **fields)
            status, _, answer = await site.post("/v1/responses/input_tokens", **fields)
            counted = orjson.loads(answer)
            check("TokenCountsResource", counted)
            assert (status, counted["input_tokens"]) == (200, response["usage"]["input_tokens"])

    run(main)


def test_reasoning_comes_back_by_its_seal() -> None:
    async def main() -> None:
        template = "{% for m in messages %}[{{ m.role }}|{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}"
        async with front("<think>So it is.</think>Yes.", parsers=THINKING, chat_template=template) as site:
            include = ["reasoning.encrypted_content"]
            thought, said = (await created(site, store=False, include=include))["output"]
            sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
            foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"}
            again = [{"role": "user", "content": "hi"}, foreign, sealed, said, {"role": "user", "content": "Why?"}]
            await created(site, input=again)
            assert "[assistant|So it is.|Yes.]" in prompt_of(site)

    run(main)


@pytest.mark.parametrize("asked", [{"summary": "auto"}, {"summary": "concise"}, {"generate_summary": "detailed"}])
def test_reasoning_whose_summary_is_asked_for_is_given_as_that_and_comes_back_once(asked: dict[str, str]) -> None:
    async def main() -> None:
        template = "{% for m in messages %}[{{ m.role }}|{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}"
        async with front("<think>So it is.</think>Yes.", parsers=THINKING, chat_template=template) as site:
            include = ["reasoning.encrypted_content"]
            first = await created(site, reasoning=asked, include=include)
            assert first["reasoning"]["summary"] == next(iter(asked.values()))
            thought, said = first["output"]
            assert thought["summary"] == [{"type": "summary_text", "text": "So it is."}]
            assert "content" not in thought
            bare = {name: value for name, value in thought.items() if name != "encrypted_content"}
            raw = {**thought, "content": [{"type": "reasoning_text", "text": "So it is."}]}
            for sent in (thought, bare, raw):
                again = [{"role": "user", "content": "hi"}, sent, said, {"role": "user", "content": "Why?"}]
                await created(site, input=again)
                assert "[assistant|So it is.|Yes.]" in prompt_of(site)
            kinds = [event["type"] for event in await streamed(site, reasoning=asked)]
            of_item = [kind for kind in kinds if "reasoning" in kind]
            names = ["part.added", *["text.delta"] * kinds.count("response.reasoning_summary_text.delta")]
            names += ["text.done", "part.done"]
            assert of_item == [f"response.reasoning_summary_{name}" for name in names]

    run(main)


def test_the_python_client_reads_the_stream_and_the_parsed_answer() -> None:
    async def main() -> None:
        async with front('{"city": "Rome"}', reason="stop") as site, openai_client(site) as client:
            parsed = await client.responses.parse(model="demo", input="hi", text_format=City)
            assert parsed.output_parsed == City(city="Rome")
            async with client.responses.stream(model="demo", input="hi", text_format=City) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert final.output_parsed == City(city="Rome")
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
        text = f"<think>Hm.</think>\n\n{OUTPUTS['calls']}"
        async with front(text, parsers=THINKING, reason="stop") as site, openai_client(site) as client:
            tools: Any = TOOLS
            async with client.responses.stream(model="demo", input="hi", tools=tools) as stream:
                async for event in stream:
                    assert type(event).__name__.startswith("Response"), event
                final = await stream.get_final_response()
            calls = ["function_call", "custom_tool_call"] * 2
            assert [item.type for item in final.output] == ["reasoning", "message", *calls]

    run(main)
