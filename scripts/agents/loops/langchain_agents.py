"""LangChain's agents, which are graphs of LangGraph."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from scripts.agents.loops.report import LETTER, ONE, TWO, Loop, run, saw, weather


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return weather(city)


@tool
def write_letter(text: str) -> str:
    """Writes a letter."""
    return "written"


class City(BaseModel):
    name: str
    country: str


def chat(api: str, model: str, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=api, api_key=SecretStr("-"), max_retries=0, **fields)


def agent(api: str, question: str, model: str, city: str) -> str:
    graph = create_agent(chat(api, model), [get_weather])
    messages = graph.invoke({"messages": [{"role": "user", "content": question}]})["messages"]
    asked = [
        call["args"]["city"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls
    ]
    assert sum(isinstance(message, ToolMessage) for message in messages) == len(asked)
    return saw(asked=asked, answer=messages[-1].content, city=city)


def streamed(api: str, question: str, city: str) -> str:
    graph = create_agent(chat(api, "scripted"), [get_weather])
    asked, answer = [], ""
    inputs: Any = {"messages": [{"role": "user", "content": question}]}
    for message, _ in graph.stream(inputs, stream_mode="messages"):
        if isinstance(message, ToolMessage):
            asked.append(str(message.content).removeprefix(weather("")))
        else:
            answer += message.text  # type: ignore[attr-defined]
    return saw(asked=asked, answer=answer, city=city)


def tool_strategy(api: str) -> str:
    """`tool_choice: required`, and an answer in the form of a model."""
    graph = create_agent(chat(api, "scripted"), [get_weather], response_format=ToolStrategy(City))
    found = graph.invoke({"messages": [{"role": "user", "content": "Describe Paris"}]})["structured_response"]
    assert found == City(name="Paris", country="France")
    return repr(found)


def function_calling(api: str) -> str:
    """A named tool, and none beside it."""
    found = chat(api, "scripted").with_structured_output(City, method="function_calling").invoke("Describe Paris")
    assert found == City(name="Paris", country="France")
    return repr(found)


def cut(api: str) -> str:
    message: Any = chat(api, "scripted", max_tokens=30).bind_tools([write_letter]).invoke(LETTER)
    assert message.response_metadata["finish_reason"] == "length", message
    calls = [*message.tool_calls, *message.invalid_tool_calls]
    assert [call["name"] for call in calls] == ["write_letter"], message
    return f"finish_reason length, {len(message.tool_calls)} call, {len(message.invalid_tool_calls)} invalid"


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: agent(api, ONE, "scripted", "Paris"),
    "two tools": lambda api: agent(api, TWO, "scripted", "Rome"),
    "two tools, streamed": lambda api: streamed(api, TWO, "Rome"),
    "thinking model": lambda api: agent(api, ONE, "thinking", "Paris"),
    "structured answer by a tool": tool_strategy,
    "with_structured_output by a tool": function_calling,
    "cut by max_tokens": cut,
}

if __name__ == "__main__":
    run(LOOPS)
