"""Agent loops with tools: the model calls a tool, the client runs it and sends the result, the model answers. The
models are scripted, so that nothing here waits for one."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from scripts.agents.loops import (
    anthropic_python,
    instructor_tools,
    langchain_agents,
    openai_python,
    openai_responses,
    pydantic_ai_agents,
)
from scripts.agents.loops.report import LETTER, Loop
from scripts.agents.rules import SCRIPTED, models
from tests.support.clients.scripted_router import ScriptedModel, ScriptedSite, scripted_router

PROGRAMS = (
    *(openai_python, openai_responses, anthropic_python),
    *(langchain_agents, pydantic_ai_agents, instructor_tools),
)
LOOPS = {
    f"{program.__name__.rpartition('.')[2]}: {name}": loop
    for program in PROGRAMS
    for name, loop in program.LOOPS.items()
}
NUM_STREAMS = 6


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    folder = tmp_path_factory.mktemp("scripted")
    slow = ScriptedModel("slow", SCRIPTED, num_workers=2, step_s=0.02)
    with scripted_router(folder, [slow, *models(folder)]) as site:
        yield site


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_a_loop_with_tools_comes_to_its_end(scripted: ScriptedSite, loop: Loop) -> None:
    assert loop(scripted.api)


def test_calls_that_are_being_written_outlive_a_killed_worker(scripted: ScriptedSite) -> None:
    client = openai.OpenAI(base_url=scripted.api, api_key="-", max_retries=0)
    tool: Any = {"type": "function", "function": {"name": "write_letter"}}
    begun = threading.Semaphore(0)

    def call(number: int) -> tuple[str, set[str]]:
        messages: Any = [{"role": "user", "content": f"{number}: {LETTER}"}]
        arguments, ids, reason = "", set(), None
        for chunk in client.chat.completions.create(model="slow", messages=messages, tools=[tool], stream=True):
            reason = chunk.choices[0].finish_reason or reason
            for delta in chunk.choices[0].delta.tool_calls or []:
                ids |= {delta.id} - {None}
                assert delta.function is not None
                arguments += delta.function.arguments or ""
                if arguments and delta.function.arguments == arguments:  # the first ones
                    begun.release()
        assert reason == "tool_calls"
        return arguments, ids

    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        calls = [threads.submit(call, number) for number in range(NUM_STREAMS)]
        assert all(begun.acquire(timeout=30) for _ in range(NUM_STREAMS // 2))  # both workers have some by then
        scripted.workers[0].kill()
        for one in calls:
            arguments, ids = one.result(60)
            assert json.loads(arguments) == {"text": "dear friend, " * 40}
            assert len(ids) == 1
    with urllib.request.urlopen(f"{scripted.url}/metrics", timeout=10) as page:
        retries = re.findall(r"^slipstream:retries_total.* (\S+)$", page.read().decode(), re.MULTILINE)
    assert sum(map(float, retries)) >= 1, "the worker had none of them"
