"""Which fields of OpenAI's bodies a model of text can answer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.http.http_error import HttpError
from slipstream.router.tensors.infer_request import ParameterValue

# What reaches the model, as an input or as a parameter of its request.
PASSED_ON = (
    *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
# What would change the answer, and cannot be passed on: (field, values that ask for nothing).
REFUSED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    *(("n", (1,)), ("best_of", (1,)), ("logprobs", (False,)), ("prompt_logprobs", ()), ("echo", (False,))),
    *(("tools", ([],)), ("functions", ([],)), ("use_beam_search", (False,)), ("logit_bias", ({},))),
    *(("guided_json", ()), ("guided_regex", ()), ("guided_choice", ()), ("guided_grammar", ())),
    *(("structured_outputs", ()), ("continue_final_message", (False,)), ("bad_words", ([],))),
    *(("stop_token_ids", ([],)), ("allowed_token_ids", ()), ("logits_processors", ()), ("explain", (False,))),
    *(("return_token_ids", (False,)), ("detokenize", (True,)), ("skip_special_tokens", (True,))),
)

TextBody = ChatRequest | CompletionRequest


def check_served(body: TextBody) -> None:
    """Raises HttpError 400 for a field that a model of text cannot answer to."""
    for field, neutral in REFUSED:
        value = getattr(body, field, None)
        if value is not None and value not in neutral:
            raise unsupported(field)
    kind = getattr(body.response_format, "type", "text")
    if body.response_format is not None and kind != "text":
        raise unsupported("response_format")


def unsupported(field: str) -> HttpError:
    message = f"'{field}' is not supported by this model, which takes and gives text."
    return HttpError(400, message, param=field, code="unsupported_parameter")


def passed_fields(body: TextBody) -> dict[str, Any]:
    """What the client has set of the fields that reach the model."""
    values = {name: getattr(body, name, None) for name in PASSED_ON}
    values["max_tokens"] = body.stated_max_tokens
    return {name: value for name, value in values.items() if value is not None}


def parameters_of(fields: Mapping[str, Any]) -> Iterator[tuple[str, ParameterValue]]:
    """As parameters of a tensor request, which has no lists: several stop strings are a JSON list."""
    for name, value in fields.items():
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else orjson.dumps(value).decode()
        yield name, value
