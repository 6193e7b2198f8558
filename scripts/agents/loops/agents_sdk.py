"""OpenAI's Agents SDK for Python, at the Responses API, which is its default, and at chat completions."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from openai import AsyncOpenAI
from pydantic import BaseModel

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from scripts.agents.loops.report import ONE, TWO, Loop, run, saw, weather

Interface = Literal["responses", "chat"]


class City(BaseModel):
    name: str
    country: str


def model(api: str, name: str, interface: Interface = "responses") -> Any:
    client = AsyncOpenAI(base_url=api, api_key="-", max_retries=0)
    kind: Any = OpenAIResponsesModel if interface == "responses" else OpenAIChatCompletionsModel
    return kind(model=name, openai_client=client)


def make(api: str, asked: list[str], name: str = "scripted", interface: Interface = "responses", **fields: Any) -> Any:
    @function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return weather(city)

    return Agent(name="Weatherman", model=model(api, name, interface), tools=[get_weather], **fields)


def whole(api: str, question: str, city: str, name: str = "scripted", interface: Interface = "responses") -> str:
    asked: list[str] = []
    answer = Runner.run_sync(make(api, asked, name, interface, instructions="You know the weather."), question)
    return saw(asked=asked, answer=answer.final_output, city=city)


def streamed(api: str, question: str, city: str, interface: Interface = "responses") -> str:
    asked: list[str] = []

    async def ask() -> str:
        result = Runner.run_streamed(make(api, asked, interface=interface), question)
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert text == result.final_output
        return text

    return saw(asked=asked, answer=asyncio.run(ask()), city=city)


def stored(api: str) -> str:
    """Only what is new goes to the server, after `previous_response_id`, and the next run goes on from there."""
    asked: list[str] = []
    agent = make(api, asked, model_settings=ModelSettings(store=True))
    first = Runner.run_sync(agent, ONE, auto_previous_response_id=True)
    second = Runner.run_sync(agent, "And what is the weather in Rome?", previous_response_id=first.last_response_id)
    assert first.final_output == "It is sunny in Paris."
    return saw(asked=asked, answer=second.final_output, city="Rome")


def in_a_conversation(api: str) -> str:
    asked: list[str] = []
    agent = make(api, asked)

    async def ask() -> Any:
        held = await AsyncOpenAI(base_url=api, api_key="-", max_retries=0).conversations.create()
        await Runner.run(agent, ONE, conversation_id=held.id)
        return await Runner.run(agent, "And what is the weather in Rome?", conversation_id=held.id)

    return saw(asked=asked, answer=asyncio.run(ask()).final_output, city="Rome")


def in_a_session(api: str) -> str:
    """The client keeps the history, with reasoning items, and sends all of it."""
    asked: list[str] = []
    agent, session = make(api, asked, "thinking"), SQLiteSession("one")
    Runner.run_sync(agent, ONE, session=session)
    answer = Runner.run_sync(agent, "And what is the weather in Rome?", session=session)
    kinds = [item.get("type", "message") for item in asyncio.run(session.get_items())]
    assert kinds.count("reasoning") == 4, kinds
    return saw(asked=asked, answer=answer.final_output, city="Rome") + f"; {len(kinds)} items"


def structured(api: str) -> str:
    agent: Any = Agent(name="Geographer", model=model(api, "scripted"), output_type=City)
    found = Runner.run_sync(agent, "Describe Paris as JSON").final_output
    assert found == City(name="Paris", country="France")
    return repr(found)


def handed_over(api: str) -> str:
    """One agent hands over to another, by a tool."""
    asked: list[str] = []
    other = make(api, asked)
    first: Any = Agent(name="Desk", model=model(api, "scripted"), handoffs=[handoff(other)])
    result = Runner.run_sync(first, "Hand over: what is the temperature in Paris?")
    assert result.last_agent.name == "Weatherman"
    return saw(asked=asked, answer=result.final_output)


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: whole(api, ONE, "Paris"),
    "two tools": lambda api: whole(api, TWO, "Rome"),
    "two tools, streamed": lambda api: streamed(api, TWO, "Rome"),
    "thinking model": lambda api: whole(api, ONE, "Paris", "thinking"),
    "previous_response_id": stored,
    "conversation": in_a_conversation,
    "session of the client, thinking model": in_a_session,
    "structured output": structured,
    "handoff to another agent": handed_over,
    "two tools, chat completions": lambda api: whole(api, TWO, "Rome", interface="chat"),
    "two tools, chat completions, streamed": lambda api: streamed(api, TWO, "Rome", "chat"),
}

if __name__ == "__main__":
    set_tracing_disabled(True)
    run(LOOPS)
