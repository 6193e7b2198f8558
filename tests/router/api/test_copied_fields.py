"""The Responses and Messages APIs have fields of chat completions with the limits that chat completions have."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from slipstream.router.api.anthropic import chat_translation as messages_translation
from slipstream.router.api.anthropic.request_body import MessagesRequest
from slipstream.router.api.openai.responses.body import chat_translation as responses_translation
from slipstream.router.api.openai.responses.body.request_body import ResponsesRequest
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.sampling_fields import SamplingFields
from slipstream.router.api.openai.schema.serving_fields import ServingFields

APIS = [
    (ResponsesRequest, SamplingFields, responses_translation.SAME_FIELDS),
    (MessagesRequest, ServingFields, messages_translation.SAME_FIELDS),
]
OTHERWISE = {"service_tier", "max_tokens", "temperature", "top_k", "user"}  # as that API has them


def shown(part: object) -> str:
    """Without the addresses of functions."""
    return re.sub(r"0x[0-9a-f]+", "", repr(part))


@pytest.mark.parametrize(("body", "base", "copied"), APIS)
def test_what_is_copied_to_the_chat_has_the_same_limits_there(
    body: type[BaseModel], base: type[BaseModel], copied: tuple[str, ...]
) -> None:
    assert len(copied) == len(set(copied))
    for name in set(copied) - OTHERWISE:
        own, of_chat = body.model_fields[name], ChatRequest.model_fields[name]
        assert shown(own.metadata) == shown(of_chat.metadata), name
        if own.is_required() == of_chat.is_required():
            assert shown(own.annotation) == shown(of_chat.annotation), name


@pytest.mark.parametrize(("body", "base", "copied"), APIS)
def test_no_common_field_is_declared_anew_or_forgotten(
    body: type[BaseModel], base: type[BaseModel], copied: tuple[str, ...]
) -> None:
    assert issubclass(body, base)
    assert not set(base.model_fields) & set(body.__annotations__)
    assert set(base.model_fields) - {"session_id"} <= set(copied)
