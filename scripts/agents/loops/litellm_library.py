"""LiteLLM as a library: chats over chat completions and over Messages, and responses."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a table of prices

import litellm

from scripts.agents.loops.report import ONE, TWO, Loop, run, saw, weather

PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FLAT: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": PARAMETERS,
}
TOOL: Any = {"type": "function", "function": {key: value for key, value in FLAT.items() if key != "type"}}


def completion(api: str, model: str, question: str, city: str, is_streamed: bool = False) -> str:
    base = api.removesuffix("/v1") if model.startswith("anthropic/") else api
    fields: Any = {"model": model, "api_base": base, "api_key": "-", "tools": [TOOL], "num_retries": 0}
    asked: list[str] = []
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(2):
        if is_streamed:
            chunks = list(litellm.completion(messages=messages, stream=True, **fields))
            answer: Any = litellm.stream_chunk_builder(chunks, messages=messages)
        else:
            answer = litellm.completion(messages=messages, **fields)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        for call in message.tool_calls or []:
            asked.append(json.loads(call.function.arguments)["city"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": weather(asked[-1])})
    return saw(asked=asked, answer=message.content, city=city)


def responses(api: str, is_streamed: bool = False) -> str:
    fields: Any = {"model": "openai/scripted", "api_base": api, "api_key": "-", "tools": [FLAT]}
    asked: list[str] = []
    history: list[Any] = [{"role": "user", "content": TWO}]
    for _ in range(2):
        if is_streamed:
            events: Any = litellm.responses(input=history, stream=True, **fields)
            answer: Any = next(event.response for event in events if event.type == "response.completed")
        else:
            answer = litellm.responses(input=history, **fields)
        for item in answer.output:
            shown = item if isinstance(item, dict) else item.model_dump(exclude_none=True)
            history.append(shown)
            if shown["type"] == "function_call":
                asked.append(json.loads(shown["arguments"])["city"])
                said = weather(asked[-1])
                history.append({"type": "function_call_output", "call_id": shown["call_id"], "output": said})
    return saw(asked=asked, answer=history[-1]["content"][0]["text"], city="Rome")


LOOPS: dict[str, Loop] = {
    "openai/, two tools": lambda api: completion(api, "openai/scripted", TWO, "Rome"),
    "openai/, two tools, streamed": lambda api: completion(api, "openai/scripted", TWO, "Rome", True),
    "openai/, thinking model": lambda api: completion(api, "openai/thinking", ONE, "Paris"),
    "anthropic/, two tools": lambda api: completion(api, "anthropic/scripted", TWO, "Rome"),
    "anthropic/, two tools, streamed": lambda api: completion(api, "anthropic/scripted", TWO, "Rome", True),
    "responses, two tools": responses,
    "responses, two tools, streamed": lambda api: responses(api, True),
}

if __name__ == "__main__":
    run(LOOPS)
