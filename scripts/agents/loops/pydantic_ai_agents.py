"""Agents of pydantic-ai."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse, ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from scripts.agents.loops.report import LETTER, ONE, TWO, Loop, run, saw, weather


class City(BaseModel):
    name: str
    country: str


def make(api: str, model: str, asked: list[str], **fields: Any) -> Agent[None, str]:
    agent: Agent[None, str] = Agent(
        OpenAIChatModel(model, provider=OpenAIProvider(base_url=api, api_key="-")), **fields
    )

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return weather(city)

    @agent.tool_plain
    def write_letter(text: str) -> str:
        """Writes a letter."""
        return "written"

    return agent


def whole(api: str, question: str, city: str) -> str:
    asked: list[str] = []
    answer = make(api, "scripted", asked).run_sync(question).output
    return saw(asked=asked, answer=answer, city=city)


def streamed(api: str, question: str, city: str) -> str:
    asked: list[str] = []
    agent = make(api, "scripted", asked)

    async def ask() -> str:
        async with agent.run_stream(question) as result:
            return "".join([text async for text in result.stream_text(delta=True, debounce_by=None)])

    answer = asyncio.run(ask())
    return saw(asked=asked, answer=answer, city=city)


def thinking(api: str) -> str:
    asked: list[str] = []
    result = make(api, "thinking", asked).run_sync(ONE)
    responses = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    thoughts = [part.content for response in responses for part in response.parts if isinstance(part, ThinkingPart)]
    assert thoughts == ["I need the weather of Paris.", "Now I know."], thoughts
    return f"{thoughts}; " + saw(asked=asked, answer=result.output)


def structured(api: str) -> str:
    """`tool_choice: required`, and an answer in the form of a model."""
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=api, api_key="-"))
    found = Agent(model, output_type=City).run_sync("Describe Paris by final_result").output
    assert found == City(name="Paris", country="France")
    return repr(found)


def cut(api: str) -> str:
    agent = make(api, "scripted", [], model_settings={"max_tokens": 30}, retries=0)
    try:
        agent.run_sync(LETTER)
    except UnexpectedModelBehavior as error:
        return f"{type(error).__name__}: {error}"[:120]
    raise AssertionError("the cut was not noticed")


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: whole(api, ONE, "Paris"),
    "two tools": lambda api: whole(api, TWO, "Rome"),
    "two tools, streamed": lambda api: streamed(api, TWO, "Rome"),
    "thinking model": thinking,
    "structured answer by a tool": structured,
    "cut by max_tokens": cut,
}

if __name__ == "__main__":
    run(LOOPS)
