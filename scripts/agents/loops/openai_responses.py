"""OpenAI's client for Python, at the Responses API."""

from __future__ import annotations

import json
from typing import Any

import openai
from pydantic import BaseModel

from scripts.agents.loops.report import LETTER, ONE, TWO, Loop, run, saw, weather

PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": PARAMETERS,
}


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str


class City(BaseModel):
    name: str
    country: str


PARSED_TOOL: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
# The order of the events of a call and of a text, in which each may come several times.
CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
TEXT_EVENTS = [
    *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
    *("content_part.done", "output_item.done"),
]


def client(api: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=api, api_key="-", max_retries=0)


def results(output: Any, asked: list[str]) -> list[Any]:
    """What the tools say to the calls of an output."""
    answers = []
    for item in output:
        if item.type == "function_call":
            asked.append(json.loads(item.arguments)["city"])
            answers.append({"type": "function_call_output", "call_id": item.call_id, "output": weather(asked[-1])})
    return answers


def whole(api: str, question: str, model: str, city: str) -> str:
    """The whole history each time, with what the model put out as it came."""
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": question}]
    responses = client(api).responses
    answer = responses.create(model=model, input=history, tools=[TOOL], store=False)
    assert answer.status == "completed", answer
    history += [*answer.output, *results(answer.output, asked)]
    answer = responses.create(model=model, input=history, tools=[TOOL], store=False)
    return saw(asked=asked, answer=answer.output_text, city=city)


def streamed(api: str, question: str, model: str, city: str) -> str:
    """By the events themselves, in their order."""
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": question}]
    responses = client(api).responses
    for wanted in (CALL_EVENTS, TEXT_EVENTS):
        events = list(responses.create(model=model, input=history, tools=[TOOL], stream=True))
        assert [event.sequence_number for event in events] == [*range(len(events))]
        kinds = [event.type.removeprefix("response.") for event in events]
        assert (kinds[0], kinds[1], kinds[-1]) == ("created", "in_progress", "completed"), kinds
        last: Any = events[-1]
        index = last.response.output[-1]
        of_last = [one for one in events[2:-1] if getattr(one, "output_index", None) == len(last.response.output) - 1]
        seen = list(dict.fromkeys(event.type.removeprefix("response.") for event in of_last))
        assert seen == wanted, (seen, index)
        history += [*last.response.output, *results(last.response.output, asked)]
        answer = last.response.output_text
    return saw(asked=asked, answer=answer, city=city)


def accumulated(api: str) -> str:
    """`stream`, which puts a response together and checks it as it grows."""
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": TWO}]
    responses = client(api).responses
    for _ in range(2):
        with responses.stream(model="scripted", input=history, tools=[TOOL]) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            answer = stream.get_final_response()
        history += [*answer.output, *results(answer.output, asked)]
    assert snapshots[-1] == answer.output_text
    return saw(asked=asked, answer=answer.output_text, city="Rome")


def parsed(api: str) -> str:
    """`parse`, with a strict tool made of a model."""
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": TWO}]
    responses = client(api).responses
    answer: Any = responses.parse(model="scripted", input=history, tools=[PARSED_TOOL])
    cities = [item.parsed_arguments.city for item in answer.output if item.type == "function_call"]
    shown = [item.model_dump(exclude={"parsed_arguments"}, exclude_none=True) for item in answer.output]
    history += [*shown, *results(answer.output, asked)]
    assert cities == asked
    last: Any = responses.parse(model="scripted", input=history, tools=[PARSED_TOOL])
    return saw(asked=asked, answer=last.output_text, city="Rome")


def structured(api: str) -> str:
    """`text_format`: JSON that fits a model."""
    found: Any = client(api).responses.parse(model="scripted", input="Describe Paris as JSON", text_format=City)
    assert found.output_parsed == City(name="Paris", country="France"), found
    return repr(found.output_parsed)


def chained(api: str, model: str) -> str:
    """Only what is new each time, after `previous_response_id`; then what is stored, and its end."""
    asked: list[str] = []
    responses = client(api).responses
    first = responses.create(model=model, input=TWO if model == "scripted" else ONE, tools=[TOOL], store=True)
    new = results(first.output, asked)
    second = responses.create(model=model, previous_response_id=first.id, input=new, tools=[TOOL], store=True)
    assert second.previous_response_id == first.id
    kept = responses.retrieve(second.id)
    assert kept.output_text == second.output_text
    items = responses.input_items.list(second.id, order="asc").data
    kinds = [item.type for item in items]
    assert kinds[0] == "message", kinds
    assert kinds[-1] == "function_call_output", kinds
    third = responses.create(
        model=model, previous_response_id=second.id, input="What is the weather in Oslo?", tools=[TOOL]
    )
    assert results(third.output, []) == [
        {"type": "function_call_output", "call_id": third.output[-1].call_id, "output": weather("Oslo")}  # type: ignore[union-attr]
    ]
    responses.delete(second.id)
    try:
        responses.retrieve(second.id)
    except openai.NotFoundError:
        city = "Rome" if model == "scripted" else "Paris"
        return saw(asked=asked, answer=second.output_text, city=city) + f"; {len(items)} input items; deleted"
    raise AssertionError("a deleted response is still there")


def conversation(api: str) -> str:
    """A conversation holds the history."""
    asked: list[str] = []
    one = client(api)
    held = one.conversations.create(metadata={"topic": "weather"})
    first = one.responses.create(model="scripted", conversation=held.id, input=ONE, tools=[TOOL])
    new = results(first.output, asked)
    second = one.responses.create(model="scripted", conversation=held.id, input=new, tools=[TOOL])
    kinds = [item.type for item in one.conversations.items.list(held.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output", "message"], kinds
    one.conversations.delete(held.id)
    return saw(asked=asked, answer=second.output_text) + f"; {len(kinds)} items"


def reasoning(api: str) -> str:
    """What the model thought is an item of its own, and goes back with the call; encrypted, where nothing is stored."""
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": ONE}]
    responses = client(api).responses
    fields: Any = {"model": "thinking", "tools": [TOOL], "store": False, "include": ["reasoning.encrypted_content"]}
    answer: Any = responses.create(input=history, **fields)
    kinds = [item.type for item in answer.output]
    assert kinds == ["reasoning", "function_call"], kinds
    thoughts = "".join(part.text for part in answer.output[0].content or answer.output[0].summary)
    assert thoughts == "I need the weather of Paris.", answer.output[0]
    num_reasoning = answer.usage.output_tokens_details.reasoning_tokens
    assert 0 < num_reasoning < answer.usage.output_tokens
    history += [item.model_dump(exclude_none=True) for item in answer.output]
    history += results(answer.output, asked)
    with responses.stream(input=history, **fields) as stream:
        kinds = [event.type.removeprefix("response.") for event in stream]
        last = stream.get_final_response()
    assert "reasoning_text.delta" in kinds or "reasoning_summary_text.delta" in kinds, kinds
    return f"{thoughts!r}, {num_reasoning} tokens; " + saw(asked=asked, answer=last.output_text)


def cut(api: str) -> str:
    """A call that `max_output_tokens` cuts off."""
    tool: Any = {"type": "function", "name": "write_letter", "parameters": {"type": "object"}}
    answer: Any = client(api).responses.create(model="scripted", input=LETTER, tools=[tool], max_output_tokens=30)
    reason = answer.incomplete_details.reason
    assert (answer.status, reason) == ("incomplete", "max_output_tokens"), answer
    arguments = answer.output[-1].arguments
    assert arguments.startswith('{"text": "dear friend, '), arguments
    return f"status incomplete, {reason}, arguments {arguments[:20]!r}..."


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: whole(api, ONE, "scripted", "Paris"),
    "two tools": lambda api: whole(api, TWO, "scripted", "Rome"),
    "two tools, streamed": lambda api: streamed(api, TWO, "scripted", "Rome"),
    "two tools, Hermes, streamed": lambda api: streamed(api, TWO, "thinking", "Rome"),
    "stream helper": accumulated,
    "parse": parsed,
    "structured output": structured,
    "previous_response_id": lambda api: chained(api, "scripted"),
    "previous_response_id, thinking model": lambda api: chained(api, "thinking"),
    "conversation": conversation,
    "reasoning items given back": reasoning,
    "cut by max_output_tokens": cut,
}

if __name__ == "__main__":
    run(LOOPS)
