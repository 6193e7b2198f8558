"""The fields that the Responses and Messages APIs have from chat completions are those of chat completions."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from slipstream.router.api.anthropic import chat_translation as messages_translation
from slipstream.router.api.anthropic.request_body import MessagesRequest
from slipstream.router.api.openai.body.schema import ChatRequest, GenerationFields
from slipstream.router.api.openai.body.vllm_fields import VllmFields
from slipstream.router.api.openai.responses.body import chat_translation as responses_translation
from slipstream.router.api.openai.responses.body.request_body import ResponsesRequest

APIS = [
    (ResponsesRequest, responses_translation.SAME_FIELDS),
    (MessagesRequest, messages_translation.SAME_FIELDS),
]
OTHERWISE = {"service_tier", "max_tokens", "temperature", "top_k", "user"}  # as that API has them
NOT_IN_RESPONSES = {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}  # older than `structured_outputs`
# What Anthropic's API has under other names or not at all.
NOT_IN_MESSAGES = NOT_IN_RESPONSES | {
    *("min_tokens", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "n", "stop"),
    *("stop_token_ids", "include_stop_str_in_output", "ignore_eos", "response_format", "structured_outputs"),
    *("stream_options", "retention_s", "explain", "user"),
}


def shown(part: object) -> str:
    """Without the addresses of functions."""
    return re.sub(r"0x[0-9a-f]+", "", repr(part))


@pytest.mark.parametrize(("body", "copied"), APIS)
def test_what_is_copied_to_the_chat_has_the_same_limits_there(body: type[BaseModel], copied: tuple[str, ...]) -> None:
    assert len(copied) == len(set(copied))
    for name in set(copied) - OTHERWISE:
        own, of_chat = body.model_fields[name], ChatRequest.model_fields[name]
        assert shown(own.metadata) == shown(of_chat.metadata), name
        if own.is_required() == of_chat.is_required():
            assert shown(own.annotation) == shown(of_chat.annotation), name


@pytest.mark.parametrize(("body", "copied"), APIS)
def test_a_field_of_all_generations_is_in_each_api_or_left_out_knowingly(
    body: type[BaseModel], copied: tuple[str, ...]
) -> None:
    missing = set(GenerationFields.model_fields) - set(VllmFields.model_fields) - set(body.model_fields)
    assert missing == (NOT_IN_RESPONSES if body is ResponsesRequest else NOT_IN_MESSAGES)


@pytest.mark.parametrize(("body", "copied"), APIS)
def test_no_field_of_the_body_that_chat_has_too_is_forgotten(body: type[BaseModel], copied: tuple[str, ...]) -> None:
    shared = set(GenerationFields.model_fields) & set(body.model_fields)
    not_copied = {"metadata", "model", "session_id", "max_tokens", "n", "response_format", "stream_options"}
    assert shared <= set(copied) | not_copied
