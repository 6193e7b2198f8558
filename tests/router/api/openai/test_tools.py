"""Tools in chat completions, from the fields of a request to the message and its deltas."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest

from slipstream.router.api.openai.body.structured_output import RequestGrammars
from slipstream.router.api.openai.body.tool_grammars import RequestTool, ToolGrammars
from slipstream.router.http.http_error import HttpError
from slipstream.router.parsers.formats.registry import FORMATS
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.messages import unpack_ids
from tests.support.router.fake_cluster import FrontUnderTest, events_of, front, openai_client, run, say

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **fields}}


TOOLS = [tool("weather", description="What the weather is."), tool("time.of-day")]
ROME, BONN = '{"city": "Rom 🙂"}', '{"city": "Bonn"}'
CALLS = (
    f'<|tool_call|>{{"name": "weather", "arguments": {ROME}}}<|tool_call|>{{"name": "weather", "arguments": {BONN}}}'
)


def hermes(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'


THINKING = ParserNames("hermes", "qwen3")  # neither is in the demo's vocabulary: they are text


async def asked(site: FrontUnderTest, **fields: Any) -> tuple[int, dict[str, Any]]:
    status, _, answer = await site.post(CHAT, **{"messages": HI, **fields})
    return status, orjson.loads(answer)


async def message_of(site: FrontUnderTest, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message of a whole answer, and its finish reason."""
    status, answer = await asked(site, **fields)
    assert status == 200, answer
    (choice,) = answer["choices"]
    return choice["message"], choice["finish_reason"]


def message_from(events: list[Any], index: int = 0) -> dict[str, Any]:
    """The message that a client puts together from a stream."""
    message: dict[str, Any] = {"role": None, "content": None, "refusal": None}
    calls: list[dict[str, Any]] = []
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) else ():
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["role"] = delta.get("role", message["role"])
            for name in ("content", "reasoning", "reasoning_content"):
                if delta.get(name) is not None:
                    message[name] = (message.get(name) or "") + delta[name]
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    assert part["index"] == len(calls)
                    assert part["function"]["arguments"] == ""
                    calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
                else:
                    assert part.keys() == {"index", "function"}
                    assert part["function"].keys() == {"arguments"}
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    if message["content"] == "" and (calls or "reasoning" in message):
        message["content"] = None
    return message | ({"tool_calls": calls} if calls else {})


def prompt_of(site: FrontUnderTest) -> str:
    token_ids = unpack_ids(site.service.requests[-1].prompt_ids)
    return str(site.tokenizer._tokenizer.decode(token_ids, skip_special_tokens=False))


def test_calls_are_in_the_message_with_their_names_and_arguments() -> None:
    async def main() -> None:
        async with front(f"Let me see. {CALLS}", reason="stop") as site:
            message, reason = await message_of(site, tools=TOOLS)
            assert (message["content"], reason) == ("Let me see.", "tool_calls")
            calls = message["tool_calls"]
            assert [call["function"]["arguments"] for call in calls] == [ROME, BONN]
            assert {call["type"] for call in calls} == {"function"}
            ids = {call["id"] for call in calls}
            assert len(ids) == 2
            assert all(len(call_id) == 29 and call_id.startswith("call_") for call_id in ids)

    run(main)


def test_an_answer_of_calls_alone_has_no_content() -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            message, _ = await message_of(site, tools=TOOLS)
            assert message["content"] is None
            assert "reasoning" not in message

    run(main)


def test_the_template_gets_the_tools_without_strict_and_with_parameters() -> None:
    async def main() -> None:
        async with front("abc") as site:
            bare = {"type": "function", "function": {"name": "bare", "strict": True}}
            await message_of(site, tools=[*TOOLS, bare])
            lines = prompt_of(site).split("<|end|>")[0].splitlines()[1:]
            shown = [json.loads(line) for line in lines]
            assert shown[:2] == TOOLS
            assert shown[2]["function"] == {"name": "bare", "parameters": {"type": "object", "properties": {}}}

    run(main)


def test_without_tools_a_call_is_text_and_costs_no_parser() -> None:
    async def main() -> None:
        async with front(f"a{CALLS}", parsers=ParserNames("auto", "none")) as site:
            message, reason = await message_of(site)
            assert message == {
                "role": "assistant",
                "content": "a" + CALLS.replace("<|tool_call|>", ""),
                "refusal": None,
            }
            assert reason == "length"
            message, _ = await message_of(site, skip_special_tokens=False, tools=[])
            assert message["content"] == "a" + CALLS
            _, _, answer = await site.post("/v1/completions", prompt="a", max_tokens=99, skip_special_tokens=False)
            assert orjson.loads(answer)["choices"][0]["text"] == "a" + CALLS

    run(main)


@pytest.mark.parametrize(
    ("choice", "num_calls"),
    [
        (None, 2),
        ("auto", 2),
        ("required", 2),
        ("none", 0),
        ({"type": "function", "function": {"name": "weather"}}, 1),
        ({"type": "function", "name": "weather"}, 1),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            },
            2,
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "weather"}}],
            },
            2,
        ),
    ],
    ids=str,
)
def test_every_form_of_tool_choice_keeps_the_tools_in_the_prompt(choice: Any, num_calls: int) -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            message, reason = await message_of(site, tools=TOOLS)
            usual = prompt_of(site)
            message, reason = await message_of(site, tools=TOOLS, tool_choice=choice)
            assert len(message.get("tool_calls", ())) == num_calls
            assert reason == ("tool_calls" if num_calls else "stop")
            assert prompt_of(site) == usual  # so that the prefix of a session stays in the cache

    run(main)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", "'tool_choice' is only allowed when 'tools' are specified."),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "only allowed when 'tools'"),
        ({"function_call": {"name": "f"}}, "function_call", "only allowed when 'functions' are specified"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "is required"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type", "'custom' are not supported"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "is required"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "'f', which was not found"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            },
            "tool_choice",
            "not found in 'tools'",
        ),
        ({"tools": [tool("a"), tool("b"), tool("a")]}, "tools.2.function.name", "'a', which another tool has"),
        ({"tools": [tool("a b")]}, "tools.0.function.name", "pattern"),
        ({"tools": [tool("x" * 257)]}, "tools.0.function.name", "pattern"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type", "describe the tool as a function"),
        ({"tools": [tool("a", description="x" * (1 << 20))]}, "tools", "there may be 1048576"),
        ({"tools": [tool("a", parameters="x")]}, "tools.0.function.parameters", "should be an object"),
        ({"tools": TOOLS, "functions": [{"name": "f"}]}, "functions", "give the functions as `tools` alone"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call", "'g', which was not found"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_does_not_fit_together_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, answer = await asked(site, **fields)
            assert (status, answer["error"]["param"]) == (400, param), answer
            assert words in answer["error"]["message"]
            assert site.service.requests == []

    run(main)


def test_a_model_whose_calls_are_not_read_takes_no_tools_but_knows_them() -> None:
    async def main() -> None:
        async with front("abc", parsers=ParserNames("none", "none")) as site:
            status, answer = await asked(site, tools=TOOLS)
            assert (status, answer["error"]["param"]) == (400, "tools")
            assert "model.tool_call_parser is none" in answer["error"]["message"]
            assert (await asked(site, tools=TOOLS, tool_choice="none"))[0] == 200
            assert '"weather"' in prompt_of(site)

    run(main)


def test_unknown_fields_in_tools_are_ignored_by_name() -> None:
    async def main() -> None:
        async with front(CALLS) as site:
            cached = {"cache_control": {"type": "ephemeral"}}
            fields = {"tools": [{**TOOLS[0], **cached}, tool("b", **cached)], "tool_choice": "auto"}
            status, headers, _ = await site.post(CHAT, messages=HI, **fields)
            assert status == 200
            assert headers["x-slipstream-ignored"] == "tools.*.cache_control, tools.*.function.cache_control"

    run(main)


def test_one_call_ends_the_answer_where_there_may_be_only_one() -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            status, answer = await asked(site, tools=TOOLS, parallel_tool_calls=False)
            assert status == 200
            (choice,) = answer["choices"]
            assert len(choice["message"]["tool_calls"]) == 1
            assert choice["finish_reason"] == "tool_calls"
            first = len(site.tokenizer._tokenizer.encode(CALLS.split("}}")[0] + "}}", add_special_tokens=False).ids)
            assert answer["usage"]["completion_tokens"] == first
            await site.service.some_cancelled.wait()

    run(main)


def test_a_call_that_is_cut_off_keeps_what_there_is_of_it() -> None:
    async def main() -> None:
        async with front(CALLS) as site:
            num_tokens = len(site.tokenizer._tokenizer.encode(CALLS.split("Rom")[0], add_special_tokens=False).ids)
            message, reason = await message_of(site, tools=TOOLS, max_tokens=num_tokens)
            assert reason == "length"
            (call,) = message["tool_calls"]
            assert ROME.startswith(call["function"]["arguments"])
            assert call["function"]["name"] == "weather"

    run(main)


def test_older_functions_are_answered_in_their_own_form() -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            functions = [one["function"] for one in TOOLS]
            message, reason = await message_of(site, functions=functions, function_call="auto")
            assert reason == "function_call"
            assert message["function_call"] == {"name": "weather", "arguments": ROME}
            assert "tool_calls" not in message
            _, _, answer = await site.post(CHAT, messages=HI, functions=functions, stream=True)
            deltas = [event["choices"][0]["delta"] for event in events_of(answer) if isinstance(event, dict)]
            parts = [delta["function_call"] for delta in deltas if "function_call" in delta]
            assert parts[0] == {"name": "weather", "arguments": ""}
            assert "".join(part["arguments"] for part in parts) == ROME
            await message_of(
                site,
                messages=[
                    *HI,
                    {"role": "assistant", "content": None, "function_call": message["function_call"]},
                    {"role": "function", "name": "weather", "content": "Rain."},
                ],
            )
            assert prompt_of(site).endswith(f'"arguments": {ROME}}}<|end|><|tool|>Rain.<|end|><|assistant|>')

    run(main)


@pytest.mark.parametrize("shows", [True, False])
def test_reasoning_has_both_names_and_is_counted(shows: bool) -> None:
    async def main() -> None:
        text = f"<think>\nHm, ok.\n</think>\n\nSo it is.\n{hermes(BONN)}"
        async with front(text, parsers=THINKING, reason="stop") as site:
            fields = {"tools": TOOLS, "include_reasoning": shows}
            _, answer = await asked(site, **fields)
            (choice,) = answer["choices"]
            message = choice["message"]
            reasoning = {"reasoning": "Hm, ok.", "reasoning_content": "Hm, ok."} if shows else {}
            assert {key: message[key] for key in message if "reasoning" in key} == reasoning
            assert message["content"] == "So it is."
            assert choice["finish_reason"] == "tool_calls"
            counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            thought = text.split("\n\n")[0]
            num_tokens = len(site.tokenizer._tokenizer.encode(thought, add_special_tokens=False).ids)
            assert 0 < counted <= num_tokens
            _, _, streamed = await site.post(
                CHAT, messages=HI, stream=True, stream_options={"include_usage": True}, **fields
            )
            events = events_of(streamed)
            assert events[-2]["usage"]["completion_tokens_details"] == {"reasoning_tokens": counted}  # type: ignore[index]
            assert message_from(events) == message | {"tool_calls": message_from(events)["tool_calls"]}

    run(main)


def test_a_prompt_that_opens_reasoning_begins_the_output_in_it() -> None:
    template = "{{ messages[0].content }}<think>\n"

    async def main() -> None:
        async with front("Hm.</think>Yes.", parsers=THINKING, chat_template=template) as site:
            message, _ = await message_of(site)
            assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")

    run(main)


@pytest.mark.parametrize("skips", [True, False])
def test_marks_of_reasoning_are_read_whether_special_tokens_are_shown_or_not(skips: bool) -> None:
    """As in vLLM. Text that no parser reads shows them."""
    text = "<think>Hm.</think><|end|>Yes."
    content, unread = ("Yes.", "Hm.Yes.") if skips else ("<|end|>Yes.", text)

    async def main() -> None:
        async with front(text, parsers=THINKING) as site:
            message, _ = await message_of(site, skip_special_tokens=skips)
            assert (message["reasoning"], message["content"]) == ("Hm.", content)
            _, _, answer = await site.post("/v1/completions", prompt="a", max_tokens=99, skip_special_tokens=skips)
            assert orjson.loads(answer)["choices"][0]["text"] == unread
        async with front(text, parsers=ParserNames("none", "none")) as site:
            message, _ = await message_of(site, skip_special_tokens=skips)
            assert message["content"] == unread

    run(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_is_the_whole_answer_however_its_tokens_are_grouped(seed: int) -> None:
    texts = [
        f"<think>Let me\nthink 🙂.</think>Here:\n{hermes(ROME)}",
        f'{hermes(BONN)}\n<tool_call>{{"arguments": {ROME}, "name": "time.of-day"}}</tool_call>',
        "<tool_call>\nnot a call</tool_call> <think>late</think> \n\n text",
        "plain text, with a < in it and <tool",
        "<think>never closed <tool_call>",
    ]
    random_ = random.Random(seed)

    async def compare(site: FrontUnderTest) -> None:
        for text in texts:
            answers = []
            for grouped in (1, random_.randint(2, 5), random_.randint(6, 40)):
                site.service.script = say(site.tokenizer, text, reason="stop", tokens_a_delta=grouped)
                fields = {"tools": TOOLS, "stop": ["ZZZ"], "stream_options": None}
                status, answer = await asked(site, **fields)
                assert status == 200
                (choice,) = answer["choices"]
                fields |= {"stream": True, "stream_options": {"include_usage": True}}
                _, _, streamed = await site.post(CHAT, messages=HI, **fields)
                events = events_of(streamed)
                put_together = without_ids(message_from(events))
                assert put_together == without_ids(choice["message"])
                ends = [event["choices"][0]["finish_reason"] for event in events[:-2]]  # type: ignore[index]
                assert ends[-1] == choice["finish_reason"]
                assert set(ends[:-1]) == {None}
                assert events[-2]["usage"] == answer["usage"]  # type: ignore[index]
                answers.append((put_together, answer["usage"]))
            assert answers[0] == answers[1] == answers[2]

    async def main() -> None:
        async with front(parsers=THINKING) as site:
            await compare(site)

    run(main)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": ""} for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_all_visible_tokens(stream: bool) -> None:
    async def main() -> None:
        async with front(f"Yes. {CALLS}", reason="stop") as site:
            status, _, answer = await site.post(CHAT, messages=HI, tools=TOOLS, logprobs=True, stream=stream)
            assert status == 200
            parts = [part for part in events_of(answer) if isinstance(part, dict)] if stream else [orjson.loads(answer)]
            entries = [
                entry
                for part in parts
                for choice in part["choices"]  # type: ignore[attr-defined]
                for entry in (choice["logprobs"] or {"content": []})["content"]
            ]
            assert "".join(entry["token"] for entry in entries if entry["bytes"]).startswith("Yes. <|tool_call|>{")
            assert len(entries) == len(site.tokenizer._tokenizer.encode(f"Yes. {CALLS}", add_special_tokens=False).ids)

    run(main)


def test_choices_have_calls_of_their_own() -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            _, answer = await asked(site, tools=TOOLS, n=2)
            ids = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
            assert len(set(ids)) == 4
            _, _, streamed = await site.post(CHAT, messages=HI, tools=TOOLS, n=2, stream=True)
            events = events_of(streamed)
            assert len(message_from(events, 0)["tool_calls"]) == len(message_from(events, 1)["tool_calls"]) == 2

    run(main)


def test_a_prompt_that_is_too_long_is_refused_before_schemas_are_tried() -> None:
    async def main() -> None:
        async with front(CALLS) as site:
            unknown = {"type": "object", "properties": {"x": {"pattern": "(?<n>a)\\k<n>"}}}
            strict = {"type": "function", "function": {"name": "f", "parameters": unknown, "strict": True}}
            for messages, code in (
                (HI, "invalid_value"),
                ([{"role": "user", "content": "x " * 5000}], "context_length_exceeded"),
            ):
                status, answer = await asked(site, messages=messages, tools=[strict])
                assert (status, answer["error"]["code"]) == (400, code), answer

    run(main)


def test_a_stop_string_within_a_call_ends_it() -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site:
            message, reason = await message_of(site, tools=TOOLS, stop=["Bonn"])
            assert [call["function"]["arguments"] for call in message["tool_calls"]] == [ROME, '{"city": "']
            assert reason == "stop", "a call that is cut off is not to be run"
            message, reason = await message_of(site, tools=TOOLS, stop=["Nowhere"])
            assert (len(message["tool_calls"]), reason) == (2, "tool_calls")

    run(main)


def test_the_openai_client_streams_calls() -> None:
    async def main() -> None:
        async with front(CALLS, reason="stop") as site, openai_client(site) as client:
            async with client.chat.completions.stream(model="demo", messages=HI, tools=TOOLS) as stream:  # type: ignore[arg-type]
                completion = await stream.get_final_completion()
            calls = completion.choices[0].message.tool_calls or []
            assert [call.function.arguments for call in calls] == [ROME, BONN]
            assert completion.choices[0].finish_reason == "tool_calls"

    run(main)


SCHEMA_FAULT = {"type": "object", "properties": {"city": {"type": "nothing"}}}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tools": TOOLS}, "output"),
        ({"tools": TOOLS, "tool_choice": "required"}, "output"),
        ({"tools": TOOLS, "tool_choice": "none"}, None),
        ({"tools": TOOLS, "tool_choice": "none", "response_format": {"type": "json_object"}}, "json"),
        ({"response_format": {"type": "json_object"}}, "json"),
        ({"tools": [tool("a", parameters=SCHEMA_FAULT), TOOLS[0]]}, "output"),
        ({}, None),
    ],
    ids=lambda value: str(value)[-60:],
)
def test_calls_are_constrained_where_there_may_be_any(fields: dict[str, Any], kind: str | None) -> None:
    async def main() -> None:
        async with front("abc", parsers=ParserNames("auto", "none")) as site:
            assert (await asked(site, **fields))[0] == 200
            grammar = site.service.requests[-1].sampling.grammar
            assert (grammar.kind if grammar is not None else None) == kind

    run(main)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOLS[0], tool("a", parameters=SCHEMA_FAULT, strict=True)]},
        {"tools": [TOOLS[0], tool("a", parameters=SCHEMA_FAULT)], "tool_choice": {"type": "function", "name": "a"}},
    ],
)
def test_parameters_that_have_to_be_followed_and_cannot_be_are_named(fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, answer = await asked(site, **fields)
            assert (status, answer["error"]["param"]) == (400, "tools.1.function.parameters")

    run(main)


TAGGED = ParserNames("qwen3_coder", "none")


@pytest.mark.parametrize(("is_strict", "status"), [(True, 400), (False, 200)])
def test_a_strict_tool_needs_names_that_the_format_can_write(is_strict: bool, status: int) -> None:
    """`<parameter=a>b>` is an argument `a`."""

    async def main() -> None:
        async with front("abc", parsers=TAGGED) as site:
            parameters = {"type": "object", "properties": {"a>b": {"type": "string"}}, "required": ["a>b"]}
            got, answer = await asked(site, tools=[tool("f", parameters=parameters, strict=is_strict)])
            assert got == status
            if is_strict:
                assert answer["error"]["param"] == "tools.0.function.parameters"
                assert "'a>b'" in answer["error"]["message"]

    run(main)


def test_tools_that_are_remembered_count_with_all_their_bytes() -> None:
    """Also those whose arguments are any object, since their own schemas cannot be followed."""

    async def main() -> None:
        grammars = ToolGrammars(RequestGrammars())
        parameters = {"type": "string", "description": "x" * 100_000}
        await grammars.of(FORMATS["hermes"], MarkerTokens(), [RequestTool("f", parameters, "tools.0")], "auto")
        assert grammars._outputs.num_bytes > 100_000

    run(main)


def test_parameters_that_are_too_long_written_out_are_any_object() -> None:
    """Each value stands alone in such a format, with all definitions."""

    async def main() -> None:
        large = {"type": "object", "properties": {f"name{number}": {"type": "string"} for number in range(500)}}
        several = {f"p{i}": {"anyOf": [{"$ref": "#/$defs/X"}, {"const": i}]} for i in range(100)}
        parameters = {"type": "object", "properties": several, "$defs": {"X": large}}
        asked_for = RequestTool("f", parameters, "tools.0")
        grammars, markers = ToolGrammars(RequestGrammars()), MarkerTokens()
        found = await grammars.of(FORMATS["qwen3_coder"], markers, [asked_for], "auto")
        assert found is not None
        assert "name7" not in found.spec
        with pytest.raises(HttpError, match="written out"):
            await grammars.of(FORMATS["qwen3_coder"], markers, [asked_for._replace(is_strict=True)], "auto")

    run(main)


def test_a_schema_counts_behind_reasoning() -> None:
    async def main() -> None:
        async with front("<think>Hm.</think>{}", parsers=THINKING, reason="stop") as site:
            status, answer = await asked(site, response_format={"type": "json_object"})
            assert status == 200
            message = answer["choices"][0]["message"]
            assert (message["reasoning"], message["content"]) == ("Hm.", "{}")
            grammar = site.service.requests[-1].sampling.grammar
            assert grammar is not None
            assert grammar.kind == "output"

    run(main)


def test_channels_are_reasoning_calls_and_content() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        f"<|constrain|>json<|message|>{BONN}<|call|>"
    )

    async def main() -> None:
        async with front(text, parsers=ParserNames("openai", "openai"), reason="stop") as site:
            message, reason = await message_of(site, tools=TOOLS)
            assert (message["reasoning"], message["content"], reason) == ("Hm.", None, "tool_calls")
            assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": BONN}

    run(main)


def test_tools_count_in_what_is_tokenised() -> None:
    async def main() -> None:
        async with front("abc") as site:
            _, _, answer = await site.post("/tokenize", messages=HI, tools=TOOLS)
            await message_of(site, tools=TOOLS)
            assert orjson.loads(answer)["tokens"] == list(unpack_ids(site.service.requests[-1].prompt_ids))

    run(main)


def test_the_dispatcher_is_told_which_tools_an_answer_calls() -> None:
    async def main() -> None:
        async with front() as site:
            tokenizer = site.tokenizer
            for text, called in ((CALLS, ("weather", "weather")), ("It rains.", ())):
                site.service.script = say(tokenizer, text, reason="stop")
                status, answer = await asked(site, tools=TOOLS)
                assert status == 200
                assert site.service.turns[-1] == (answer["id"], called)
            site.service.script = say(tokenizer, "Hello.", reason="stop")
            await asked(site)
            assert len(site.service.turns) == 2

    run(main)
