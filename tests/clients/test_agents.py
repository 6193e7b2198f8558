"""Agent loops with tools: the model calls a tool, the client runs it and sends the result, the model answers. The
models are scripted, so that nothing here waits for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.agents.loops import instructor_tools, langchain_agents, openai_python, pydantic_ai_agents
from scripts.agents.loops.report import Loop
from scripts.agents.rules import models
from tests.support.clients.scripted_router import scripted_router

PROGRAMS = (openai_python, langchain_agents, pydantic_ai_agents, instructor_tools)
LOOPS = {
    f"{program.__name__.rpartition('.')[2]}: {name}": loop
    for program in PROGRAMS
    for name, loop in program.LOOPS.items()
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("scripted")
    with scripted_router(folder, models(folder)) as url:
        yield f"{url}/v1"


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_a_loop_with_tools_comes_to_its_end(api: str, loop: Loop) -> None:
    assert loop(api)
