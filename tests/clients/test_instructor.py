"""instructor's modes."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import pytest
from conftest import MODEL, Site
from instructor.core import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel

from models import Choices, Collections, Pet

MESSAGES: Any = [{"role": "user", "content": "Give me JSON"}]


def ask(site: Site, mode: instructor.Mode, model: type[BaseModel]) -> Any:
    client = instructor.from_openai(openai.OpenAI(base_url=site.api, api_key="-", max_retries=0), mode=mode)
    return client.create(
        model=MODEL,
        messages=MESSAGES,
        response_model=model,
        max_retries=0,
        max_tokens=500,
        seed=1,
        logit_bias=site.bias,
    )


@pytest.mark.parametrize("model", [Choices, Collections, Pet], ids=lambda model: model.__name__)
@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_modes_with_a_schema_give_models(site: Site, mode: instructor.Mode, model: type[BaseModel]) -> None:
    assert isinstance(ask(site, mode, model), model)


@pytest.mark.parametrize("mode", [instructor.Mode.JSON, instructor.Mode.MD_JSON])
def test_modes_that_leave_the_form_to_the_model_are_served(site: Site, mode: instructor.Mode) -> None:
    """The demo model does not do what it is asked; then the client says so, and the server has done its part."""
    completion = None
    try:
        completion = ask(site, mode, Choices)
    except (IncompleteOutputException, InstructorRetryException) as error:
        completion = error.last_completion
    assert completion is not None
