"""pydantic-ai's outputs."""

from __future__ import annotations

import contextlib

import pytest
from conftest import MODEL, Site
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from models import Choices, Collections, Pet

Output = NativeOutput[BaseModel] | PromptedOutput[BaseModel] | ToolOutput[BaseModel]


def agent(site: Site, output: Output) -> Agent[None, BaseModel]:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=site.api, api_key="-"))
    settings = OpenAIChatModelSettings(max_tokens=500, seed=1, logit_bias=site.bias)
    return Agent(model, output_type=output, model_settings=settings, retries=0)


@pytest.mark.parametrize("model", [Choices, Collections, Pet], ids=lambda model: model.__name__)
def test_native_outputs_are_models(site: Site, model: type[BaseModel]) -> None:
    assert isinstance(agent(site, NativeOutput(model)).run_sync("Give me JSON").output, model)


@pytest.mark.parametrize("model", [Choices, Collections, Pet], ids=lambda model: model.__name__)
def test_outputs_by_a_tool_are_models(site: Site, model: type[BaseModel]) -> None:
    assert isinstance(agent(site, ToolOutput(model)).run_sync("Give me JSON").output, model)


def test_prompted_outputs_are_served(site: Site) -> None:
    """The demo model does not do what it is asked; then the client says so, and the server has done its part."""
    with contextlib.suppress(UnexpectedModelBehavior):  # what the server refuses is another error, a ModelHTTPError
        assert isinstance(agent(site, PromptedOutput(Choices)).run_sync("Give me JSON").output, Choices)
