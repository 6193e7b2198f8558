"""instructor in its default mode, which is a named tool."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from instructor.core import IncompleteOutputException
from pydantic import BaseModel

from scripts.agents.loops.report import Loop, run


class City(BaseModel):
    name: str
    country: str


PARIS = {"name": "Paris", "country": "France"}


def client(api: str, **fields: Any) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=api, api_key="-", max_retries=0), **fields)


def messages(suffix: str = "") -> Any:
    return [{"role": "user", "content": f"Describe Paris{suffix}"}]


def whole(api: str, **fields: Any) -> str:
    found = client(api, **fields).create(model="scripted", messages=messages(), response_model=City, max_retries=0)
    assert found.model_dump() == PARIS, found  # a class that instructor makes of City
    return repr(found)


def partial(api: str) -> str:
    """A stream of models that grow."""
    stream = client(api).create_partial(
        model="scripted", messages=messages(" by PartialCity"), response_model=City, max_retries=0
    )
    steps = list(stream)
    assert steps[-1].model_dump() == PARIS, steps
    return f"the last of the models: {steps[-1]!r}"


def cut(api: str) -> str:
    try:
        client(api).create(model="scripted", messages=messages(), response_model=City, max_retries=0, max_tokens=15)
    except IncompleteOutputException as error:
        return f"{type(error).__name__}: {error}"[:120]
    raise AssertionError("the cut was not noticed")


LOOPS: dict[str, Loop] = {
    "default mode": whole,
    "strict tools": lambda api: whole(api, mode=instructor.Mode.TOOLS_STRICT),
    "partial models, streamed": partial,
    "cut by max_tokens": cut,
}

if __name__ == "__main__":
    run(LOOPS)
