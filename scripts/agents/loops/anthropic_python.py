"""Anthropic's client for Python, at the Messages API."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import beta_tool
from pydantic import BaseModel

from scripts.agents.loops.report import LETTER, ONE, TWO, Loop, run, saw, weather

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"name": "get_weather", "description": "The weather of a city", "input_schema": SCHEMA}
MAX_TOKENS = 500
CALL_EVENTS = ["content_block_start", "content_block_delta", "content_block_stop"]


class City(BaseModel):
    name: str
    country: str


def client(api: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=api.removesuffix("/v1"), api_key="-", max_retries=0)


def results(content: Any, asked: list[str]) -> list[Any]:
    """What the tools say to the calls of a message."""
    answers = []
    for block in content:
        if block.type == "tool_use":
            asked.append(block.input["city"])
            answers.append({"type": "tool_result", "tool_use_id": block.id, "content": weather(asked[-1])})
    return answers


def whole(api: str, question: str, model: str, city: str) -> str:
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": question}]
    fields: Any = {"model": model, "max_tokens": MAX_TOKENS, "tools": [TOOL], "system": "You know the weather."}
    message = client(api).messages.create(messages=history, **fields)
    assert message.stop_reason == "tool_use", message
    history += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results(message.content, asked)},
    ]
    message = client(api).messages.create(messages=history, **fields)
    assert message.stop_reason == "end_turn", message
    return saw(asked=asked, answer=text_of(message), city=city)


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def streamed(api: str, question: str, model: str, city: str) -> str:
    """By the events themselves, in their order; then by the helper, which puts a message together."""
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": question}]
    fields: Any = {"model": model, "max_tokens": MAX_TOKENS, "tools": [TOOL]}
    events = [event.type for event in client(api).messages.create(messages=history, stream=True, **fields)]
    assert (events[0], events[-2:]) == ("message_start", ["message_delta", "message_stop"]), events
    assert list(dict.fromkeys(events[1:-2])) == CALL_EVENTS, events
    with client(api).messages.stream(messages=history, **fields) as stream:
        message = stream.get_final_message()
    history += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results(message.content, asked)},
    ]
    with client(api).messages.stream(messages=history, **fields) as stream:
        answer = "".join(stream.text_stream)
        assert answer == text_of(stream.get_final_message())
    return saw(asked=asked, answer=answer, city=city)


def runner(api: str, question: str, city: str, is_streamed: bool) -> str:
    """`tool_runner`, which calls functions until the model answers."""
    asked: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return weather(city)

    messages: Any = [{"role": "user", "content": question}]
    fields: Any = {"model": "scripted", "max_tokens": MAX_TOKENS, "tools": [get_weather], "messages": messages}
    tools: Any = client(api).beta.messages.tool_runner(stream=is_streamed, **fields)
    for turn in tools:
        message = turn.get_final_message() if is_streamed else turn
    return saw(asked=asked, answer=text_of(message), city=city)


def thinking(api: str) -> str:
    """A block of thoughts with its signature comes before the call, and goes back with it."""
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": ONE}]
    fields: Any = {
        "model": "thinking",
        "max_tokens": 2000,
        "tools": [TOOL],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    message: Any = client(api).messages.create(messages=history, **fields)
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "tool_use"], kinds
    assert message.content[0].thinking == "I need the weather of Paris.", message
    assert message.content[0].signature, message
    history += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results(message.content, asked)},
    ]
    with client(api).messages.stream(messages=history, **fields) as stream:
        thoughts = "".join(event.thinking for event in stream if event.type == "thinking")
        last = stream.get_final_message()
    assert thoughts == "Now I know.", last
    return f"{message.content[0].thinking!r}; " + saw(asked=asked, answer=text_of(last))


def structured(api: str) -> str:
    """`output_format`: JSON that fits a model."""
    messages: Any = [{"role": "user", "content": "Describe Paris as JSON"}]
    found: Any = client(api).messages.parse(
        model="scripted", max_tokens=MAX_TOKENS, messages=messages, output_format=City
    )
    assert found.parsed_output == City(name="Paris", country="France"), found
    return repr(found.parsed_output)


def counted(api: str) -> str:
    """What `count_tokens` says is what a request takes; the second time it is found in the prefix cache."""
    messages: Any = [{"role": "user", "content": "word " * 400 + ONE}]
    fields: Any = {"model": "scripted", "messages": messages, "tools": [TOOL]}
    num_tokens = client(api).messages.count_tokens(**fields).input_tokens
    for _ in range(2):
        usage: Any = client(api).messages.create(max_tokens=MAX_TOKENS, **fields).usage
        num_cached = usage.cache_read_input_tokens or 0
        assert usage.input_tokens + num_cached + (usage.cache_creation_input_tokens or 0) == num_tokens, usage
    assert num_cached > num_tokens // 2, usage
    return f"{num_tokens} tokens, {num_cached} of them cached the second time"


def cut(api: str) -> str:
    """A call that `max_tokens` cuts off: the client keeps what of its input is whole."""
    tool: Any = {"name": "write_letter", "input_schema": {"type": "object"}}
    messages: Any = [{"role": "user", "content": LETTER}]
    with client(api).messages.stream(model="scripted", max_tokens=30, messages=messages, tools=[tool]) as stream:
        written = "".join(event.partial_json for event in stream if event.type == "input_json")
        message: Any = stream.get_final_message()
    assert message.stop_reason == "max_tokens", message
    assert message.content[-1].name == "write_letter", message
    assert written.startswith('{"text": "dear friend, '), written
    return f"stop_reason max_tokens, input {written[:20]!r}..."


def refused(api: str) -> str:
    """Errors are in Anthropic's form."""
    messages: Any = [{"role": "user", "content": ONE}]
    try:
        client(api).messages.create(model="nothing", max_tokens=1, messages=messages)
    except anthropic.NotFoundError as error:
        body: Any = error.body
        assert body["error"]["type"] == "not_found_error", body
        return f"NotFoundError, {body['error']['type']}"
    raise AssertionError("a model that is not there answered")


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: whole(api, ONE, "scripted", "Paris"),
    "two tools": lambda api: whole(api, TWO, "scripted", "Rome"),
    "two tools, streamed": lambda api: streamed(api, TWO, "scripted", "Rome"),
    "two tools, Hermes": lambda api: whole(api, TWO, "thinking", "Rome"),
    "tool_runner, two tools": lambda api: runner(api, TWO, "Rome", False),
    "tool_runner, two tools, streamed": lambda api: runner(api, TWO, "Rome", True),
    "thinking": thinking,
    "structured output": structured,
    "count_tokens": counted,
    "cut by max_tokens": cut,
    "an unknown model": refused,
}

if __name__ == "__main__":
    run(LOOPS)
