"""OpenAI's client for Python."""

from __future__ import annotations

import json
from typing import Any

import openai
from pydantic import BaseModel

from scripts.agents.loops.report import LETTER, ONE, TWO, Loop, run, saw, weather

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str


PARSED_TOOL: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")


def client(api: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=api, api_key="-", max_retries=0)


def whole(api: str, question: str, model: str, city: str) -> str:
    messages: list[Any] = [{"role": "user", "content": question}]
    completions = client(api).chat.completions
    asked = []
    choice = completions.create(model=model, messages=messages, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    messages.append(choice.message)
    for call in choice.message.tool_calls or []:
        asked.append(GetWeather.model_validate_json(call.function.arguments).city)  # type: ignore[union-attr]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": weather(asked[-1])})
    choice = completions.create(model=model, messages=messages, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "stop", choice
    return saw(asked=asked, answer=choice.message.content, city=city)


def streamed(api: str, question: str, model: str, city: str) -> str:
    """By the deltas themselves."""
    messages: list[Any] = [{"role": "user", "content": question}]
    completions = client(api).chat.completions
    calls: dict[int, dict[str, str]] = {}
    reason = None
    options: Any = {"model": model, "tools": [TOOL], "stream": True, "stream_options": {"include_usage": True}}
    for chunk in completions.create(messages=messages, **options):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for delta in choice.delta.tool_calls or []:
                call = calls.setdefault(delta.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += delta.id or ""
                call["name"] += delta.function.name or ""
                call["arguments"] += delta.function.arguments or ""
    assert reason == "tool_calls", reason
    assert [*calls] == [*range(len(calls))]
    asked = [GetWeather.model_validate_json(call["arguments"]).city for call in calls.values()]
    functions = [{"name": call["name"], "arguments": call["arguments"]} for call in calls.values()]
    shown = [
        {"id": call["id"], "type": "function", "function": function}
        for call, function in zip(calls.values(), functions, strict=True)
    ]
    messages.append({"role": "assistant", "tool_calls": shown})
    results = zip(shown, asked, strict=True)
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": weather(city)} for call, city in results]
    answer = "".join(
        choice.delta.content or ""
        for chunk in completions.create(messages=messages, **options)
        for choice in chunk.choices
    )
    return saw(asked=asked, answer=answer, city=city)


def parsed(api: str) -> str:
    """`parse`, with a strict tool made of a model."""
    messages: list[Any] = [{"role": "user", "content": TWO}]
    completions = client(api).chat.completions
    message: Any = completions.parse(model="scripted", messages=messages, tools=[PARSED_TOOL]).choices[0].message
    messages.append(message)
    asked = [call.function.parsed_arguments.city for call in message.tool_calls]
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": weather(city)}
        for call, city in zip(message.tool_calls, asked, strict=True)
    ]
    answer = completions.parse(model="scripted", messages=messages, tools=[PARSED_TOOL]).choices[0].message.content
    return saw(asked=asked, answer=answer, city="Rome")


def accumulated(api: str) -> str:
    """`stream`, which puts a whole message together and checks it as it grows."""
    messages: list[Any] = [{"role": "user", "content": TWO}]
    completions = client(api).chat.completions
    with completions.stream(model="scripted", messages=messages, tools=[PARSED_TOOL]) as stream:
        kinds = {event.type for event in stream}
        message: Any = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds, kinds
    messages.append(message)
    asked = [call.function.parsed_arguments.city for call in message.tool_calls]
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": weather(city)}
        for call, city in zip(message.tool_calls, asked, strict=True)
    ]
    with completions.stream(model="scripted", messages=messages, tools=[PARSED_TOOL]) as stream:
        answer = stream.get_final_completion().choices[0].message.content
    return saw(asked=asked, answer=answer, city="Rome")


def reasoning(api: str) -> str:
    """What the model thought comes beside the call, and goes back with it."""
    messages: list[Any] = [{"role": "user", "content": ONE}]
    completions = client(api).chat.completions
    whole: Any = completions.create(model="thinking", messages=messages, tools=[TOOL])
    message = whole.choices[0].message
    assert message.reasoning_content == "I need the weather of Paris.", message
    num_reasoning = whole.usage.completion_tokens_details.reasoning_tokens
    assert 0 < num_reasoning < whole.usage.completion_tokens
    thoughts = ""
    for chunk in completions.create(model="thinking", messages=messages, tools=[TOOL], stream=True):
        for choice in chunk.choices:
            thoughts += getattr(choice.delta, "reasoning_content", None) or ""
    assert thoughts == message.reasoning_content
    [call] = message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": weather("Paris")}]
    last: Any = completions.create(model="thinking", messages=messages, tools=[TOOL]).choices[0].message
    assert last.reasoning_content == "Now I know.", last
    return f"{thoughts!r}, {num_reasoning} tokens; " + saw(asked=["Paris"], answer=last.content)


def session(api: str, model: str) -> str:
    """43 turns. What the model wrote comes back in the history as it was written, so that its pages are found again."""
    messages: list[Any] = [{"role": "user", "content": "Do all steps"}]
    completions = client(api).chat.completions
    parameters = {"type": "object", "properties": {"after": {"type": "string"}}, "required": ["after"]}
    step: Any = {"type": "function", "function": {"name": "step", "description": "One", "parameters": parameters}}
    num_prompt, num_cached = [], []
    while True:
        answer = completions.create(model=model, messages=messages, tools=[step])
        usage: Any = answer.usage
        num_prompt.append(usage.prompt_tokens)
        num_cached.append(usage.prompt_tokens_details.cached_tokens)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        [call] = message.tool_calls
        after = int(json.loads(call.function.arguments)["after"])  # type: ignore[union-attr]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"did step {after + 1}"})
    assert (len(num_prompt), message.content) == (43, "All done."), message
    share = sum(num_cached[1:]) / sum(num_prompt[1:])
    assert share > 0.9, f"{share:.3f} of the tokens were found in the prefix cache"
    return f"43 requests, {share:.1%} of the prompt tokens found in the prefix cache"


def cut(api: str) -> str:
    """A call that `max_tokens` cuts off: its partial arguments, and the reason."""
    completions = client(api).chat.completions
    tool: Any = {"type": "function", "function": {"name": "write_letter"}}
    messages: list[Any] = [{"role": "user", "content": LETTER}]
    choice = completions.create(model="scripted", messages=messages, tools=[tool], max_tokens=30).choices[0]
    assert choice.finish_reason == "length", choice
    [call] = choice.message.tool_calls or []
    arguments = call.function.arguments  # type: ignore[union-attr]
    assert arguments.startswith('{"text": "dear friend, '), arguments
    assert not arguments.endswith("}"), arguments
    try:
        completions.parse(model="scripted", messages=messages, tools=[PARSED_TOOL], max_tokens=30)
    except openai.LengthFinishReasonError:
        return f"finish_reason length, arguments {arguments[:20]!r}...; parse raises LengthFinishReasonError"
    raise AssertionError("parse did not notice")


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: whole(api, ONE, "scripted", "Paris"),
    "one tool, streamed": lambda api: streamed(api, ONE, "scripted", "Paris"),
    "two tools": lambda api: whole(api, TWO, "scripted", "Rome"),
    "two tools, streamed": lambda api: streamed(api, TWO, "scripted", "Rome"),
    "two tools, Hermes": lambda api: whole(api, TWO, "thinking", "Rome"),
    "two tools, Hermes, streamed": lambda api: streamed(api, TWO, "thinking", "Rome"),
    "parse": parsed,
    "stream helper": accumulated,
    "reasoning": reasoning,
    "session of 43 turns": lambda api: session(api, "scripted"),
    "session of 43 turns, thinking model": lambda api: session(api, "thinking"),
    "cut by max_tokens": cut,
}

if __name__ == "__main__":
    run(LOOPS)
