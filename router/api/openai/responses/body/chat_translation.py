"""A request to the Responses API as a request to chat completions, which is what is served, and the errors of that in
the words of the client."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from slipstream.router.api.openai.responses.body.request_body import ResponsesPrompt, ResponsesRequest, TextFormat
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.messages import ChatMessage
from slipstream.router.api.openai.schema.sampling_fields import SamplingFields
from slipstream.router.api.openai.schema.structured_fields import NamedSchema, ResponseFormat
from slipstream.router.http.http_error import HttpError

SAME_FIELDS = (
    *(name for name in SamplingFields.model_fields if name != "session_id"),
    *("safety_identifier", "prompt_cache_key", "service_tier"),
)
OTHER_NAMES = (
    (re.compile(r"\bresponse_format\.json_schema\.schema\b"), "text.format.schema"),
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\bmax_(?:completion_)?tokens\b"), "max_output_tokens"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"'messages'"), "'input'"),
)
TOOL = re.compile(r"\btools\.(\d+)\.function\.(\w+)")
MAPS = ("logit_bias.", "metadata.")  # whose keys may be numbers
INDEX = re.compile(r"\.(\d+)(?=[.\[']|$)")


def chat_of_prompt(body: ResponsesPrompt, messages: list[ChatMessage], model: str) -> dict[str, Any]:
    """The fields that make the prompt."""
    text, reasoning = body.text, body.reasoning
    given: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "reasoning_effort": reasoning.effort if reasoning is not None else None,
        "verbosity": text.verbosity if text is not None else None,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    if text is not None and text.format is not None and text.format.type != "text":
        given["response_format"] = response_format(text.format)
    return {name: value for name, value in given.items() if value is not None}


def chat_of(body: ResponsesRequest, messages: list[ChatMessage], session: str | None) -> ChatRequest:
    """The whole request, which needs no further check. `session` is that of a request whose body names none: the one
    that a header names, or the conversation, or the first response of the chain, that it goes on from."""
    given = chat_of_prompt(body, messages, body.model)
    for name in SAME_FIELDS:
        value = getattr(body, name)
        if value is not None:
            given[name] = value
    if body.max_output_tokens is not None:
        given["max_completion_tokens"] = body.max_output_tokens
    if body.wants_logprobs:
        given |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    session = body.session_id or session
    if session:
        given["session_id"] = session
    chat = ChatRequest.model_construct(set(given), **given)
    chat.__dict__["tool_use"] = body.tool_use  # in place of the cached property
    return chat


def response_format(form: TextFormat) -> ResponseFormat:
    if form.type == "json_object":
        return ResponseFormat.model_construct(type="json_object", json_schema=None)
    schema = NamedSchema.model_construct(name=form.name or "", schema_=form.schema_ or {}, strict=form.strict)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def in_words_of_responses(error: HttpError, tool_places: Sequence[str] = ()) -> HttpError:
    """An error of the chat, about the fields that the client has sent. `tool_places` are where the functions that were
    made of its tools stand there."""

    def place(found: re.Match[str]) -> str:
        index = int(found[1])
        field = tool_places[index] if index < len(tool_places) else f"tools.{index}"
        return f"{field}.{found[2]}"

    def renamed(text: str) -> str:
        text = TOOL.sub(place, text)
        for pattern, name in OTHER_NAMES:
            text = pattern.sub(name, text)
        return text

    if error.param is not None:
        error.message = renamed(error.message)
        error.param = "input" if error.param == "messages" else renamed(error.param)
    return in_brackets(error)


def in_brackets(error: HttpError) -> HttpError:
    """The error with the indices of its field in brackets, as OpenAI has them in this API."""
    if error.param is not None and not error.param.startswith(MAPS):
        shown = INDEX.sub(r"[\1]", error.param)
        error.message = error.message.replace(error.param, shown)
        error.param = shown
    return error
