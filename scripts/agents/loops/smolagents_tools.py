"""smolagents' ToolCallingAgent."""

from __future__ import annotations

from smolagents import OpenAIModel, ToolCallingAgent, tool

from scripts.agents.loops.report import ONE, TWO, Loop, run, saw, weather

asked: list[str] = []


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    asked.append(city)
    return weather(city)


def agent(api: str, question: str, city: str, is_streamed: bool) -> str:
    asked.clear()
    model = OpenAIModel(model_id="scripted", api_base=api, api_key="-")
    runner = ToolCallingAgent([get_weather], model, max_steps=4, stream_outputs=is_streamed, verbosity_level=0)
    # It runs both tools at once, in threads.
    return saw(asked=asked, answer=runner.run(question), city=city, is_either=True)


LOOPS: dict[str, Loop] = {
    "one tool": lambda api: agent(api, ONE, "Paris", False),
    "one tool, streamed": lambda api: agent(api, ONE, "Paris", True),
    "two tools": lambda api: agent(api, TWO, "Rome", False),
    "two tools, streamed": lambda api: agent(api, TWO, "Rome", True),
}

if __name__ == "__main__":
    run(LOOPS)
