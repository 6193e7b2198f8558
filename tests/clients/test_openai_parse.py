"""`chat.completions.parse` of OpenAI's client, which turns pydantic models into strict schemas and back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import openai
import pytest
from conftest import MODEL, Site
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from models import ALL, Person

MESSAGES: Any = [{"role": "user", "content": "Give me JSON"}]


@pytest.fixture(scope="module")
def client(site: Site) -> openai.OpenAI:
    return openai.OpenAI(base_url=site.api, api_key="-", max_retries=0)


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_models_come_back_parsed(client: openai.OpenAI, site: Site, model: type[BaseModel]) -> None:
    num_ended = 0
    for seed in range(4):
        try:
            answer = client.chat.completions.parse(
                model=MODEL,
                messages=MESSAGES,
                response_format=model,
                max_tokens=500,
                seed=seed,
                logit_bias=site.bias,
            )
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(answer.choices[0].message.parsed, model)
        num_ended += 1
    assert num_ended


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_strict_tools_come_back_parsed(client: openai.OpenAI, site: Site, model: type[BaseModel]) -> None:
    num_ended = 0
    for seed in range(4):
        try:
            answer = client.chat.completions.parse(
                model=MODEL,
                messages=MESSAGES,
                tools=[openai.pydantic_function_tool(model)],
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=500,
                seed=seed,
                logit_bias=site.bias,
            )
        except openai.LengthFinishReasonError:
            continue
        [call] = answer.choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, model)
        num_ended += 1
    assert num_ended


def test_streams_come_back_parsed(client: openai.OpenAI, site: Site) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=500, seed=1, logit_bias=site.bias
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


class WithPatterns(GenerateJsonSchema):
    """As pydantic did before 2.14, and does on request."""

    def get_decimal_pattern(self, schema: Any) -> str | None:
        return self.build_decimal_pattern(schema)


def test_decimals_with_patterns_are_decimals(client: openai.OpenAI, site: Site) -> None:
    price = TypeAdapter(Decimal).json_schema(schema_generator=WithPatterns)["anyOf"][1]
    old = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}
    for pattern in (price, old):
        schema = {"type": "object", "properties": {"x": {**pattern, "maxLength": 9}}, "required": ["x"]}
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_format=form, logit_bias=site.bias, max_tokens=60
        )
        content = answer.choices[0].message.content or ""
        assert Decimal(TypeAdapter(dict[str, str]).validate_json(content)["x"]).is_finite()


def test_a_schema_that_cannot_be_followed_is_refused_by_its_pointer(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": r"(a)\1"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="at /properties/x/pattern: "):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=form)
