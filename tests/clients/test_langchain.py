"""LangChain's `with_structured_output`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import MODEL, Site
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from models import Choices, Collections, Pet


def chat(site: Site, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=site.api,
        api_key=SecretStr("-"),
        seed=1,
        max_retries=0,
        logit_bias={int(token): bias for token, bias in site.bias.items()},
        **fields,
    )


@pytest.mark.parametrize("model", [Choices, Collections, Pet], ids=lambda model: model.__name__)
@pytest.mark.parametrize("strict", [None, True, False])
def test_models_by_json_schema(site: Site, model: type[BaseModel], strict: bool | None) -> None:
    bound = chat(site, max_tokens=500).with_structured_output(model, method="json_schema", strict=strict)
    assert isinstance(bound.invoke("Give me JSON"), model)


@pytest.mark.parametrize("model", [Choices, Collections, Pet], ids=lambda model: model.__name__)
def test_models_by_a_named_tool(site: Site, model: type[BaseModel]) -> None:
    bound = chat(site, max_tokens=500).with_structured_output(model, method="function_calling")
    assert isinstance(bound.invoke("Give me JSON"), model)


def test_a_schema_by_json_schema(site: Site) -> None:
    schema = {"title": "Size", "description": "How large", **Choices.model_json_schema()}
    bound = chat(site, max_tokens=500).with_structured_output(schema, method="json_schema")
    assert Choices.model_validate(bound.invoke("Give me JSON"))


def test_json_mode_gives_an_object(site: Site) -> None:
    bound = chat(site, max_tokens=500).with_structured_output(method="json_mode", include_raw=True)
    raw: Any = bound.invoke("Give me JSON")["raw"]  # type: ignore[index]
    if raw.response_metadata["finish_reason"] == "stop":
        assert isinstance(json.loads(raw.content), dict)
    else:
        assert raw.content.startswith("{")
