"""LlamaIndex's FunctionAgent."""

from __future__ import annotations

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

from scripts.agents.loops.report import ONE, TWO, Loop, run, saw, weather


def agent(api: str, question: str, model: str, city: str, is_streamed: bool) -> str:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return weather(city)

    async def ask() -> str:
        llm = OpenAILike(
            model=model,
            api_base=api,
            api_key="-",
            is_chat_model=True,
            is_function_calling_model=True,
            context_window=32_000,
            max_retries=0,
        )
        return str(await FunctionAgent(tools=[get_weather], llm=llm, streaming=is_streamed).run(question))

    answer = asyncio.run(ask())
    return saw(asked=asked, answer=answer, city=city)


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: agent(api, ONE, "scripted", "Paris", False),
    "one tool, streamed": lambda api: agent(api, ONE, "scripted", "Paris", True),
    "two tools, streamed": lambda api: agent(api, TWO, "scripted", "Rome", True),
    "thinking model, streamed": lambda api: agent(api, ONE, "thinking", "Paris", True),
}

if __name__ == "__main__":
    run(LOOPS)
