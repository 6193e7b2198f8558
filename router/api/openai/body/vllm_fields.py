"""Fields of vLLM. Its clients send many of them with their default values, which ask for nothing and are accepted.
Those that are not served are refused by name with another value."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from slipstream.router.api.openai.body.fields import Label, Strict, Unserved, at_most, only

MAX_TEMPLATE_KWARGS = 16
MAX_TEMPLATE_CHARS = 512
# The variables that every template gets, besides the names of special tokens.
OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


def no_own_variables(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Refuses to replace what the template is given anyway."""
    for name in kwargs:
        if name in OWN_VARIABLES or name.endswith("_token"):
            raise PydanticCustomError("own_variable", "cannot set {name}", {"name": name})
    return kwargs


def simple(value: Any) -> Any:
    """Bounds the value of a variable. What is nested would not be searched for control tokens."""
    is_simple = value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    if not is_simple or (isinstance(value, str) and len(value) > MAX_TEMPLATE_CHARS):
        message = "must be text of up to {limit} characters, a number, a boolean or null"
        raise PydanticCustomError("template_value_type", message, {"limit": MAX_TEMPLATE_CHARS})
    return value


TemplateKwargs = Annotated[
    dict[Label, Annotated[Any, AfterValidator(simple)]],
    at_most(MAX_TEMPLATE_KWARGS),
    AfterValidator(no_own_variables),
]


class VllmFields(Strict):
    """Those that both endpoints have in common."""

    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # without effect: tokenizers of today put none there
    use_beam_search: Annotated[Any, only(False)] = None
    length_penalty: Annotated[Any, only(1, 1.0)] = None
    truncate_prompt_tokens: Unserved = None
    prompt_logprobs: Unserved = None
    allowed_token_ids: Unserved = None
    bad_words: Annotated[Any, only([])] = None
    logits_processors: Annotated[Any, only([])] = None
    return_tokens_as_token_ids: Annotated[Any, only(False)] = None
    return_token_ids: Annotated[Any, only(False)] = None
    kv_transfer_params: Annotated[Any, only({})] = None
    vllm_xargs: Annotated[Any, only({})] = None


class ChatVllmFields(Strict):
    """Those of chat completions. `chat_template_kwargs` are variables for the chat template, as `enable_thinking` of
    Qwen3's."""

    chat_template_kwargs: TemplateKwargs | None = None
    chat_template: Unserved = None
    add_generation_prompt: Annotated[Any, only(True)] = None
    continue_final_message: Annotated[Any, only(False)] = None
    add_special_tokens: Annotated[Any, only(False)] = None
    echo: Annotated[Any, only(False)] = None
    documents: Annotated[Any, only([])] = None
    mm_processor_kwargs: Annotated[Any, only({})] = None
    include_reasoning: bool | None = None
    enable_thinking: bool | None = None  # of Qwen's own API


class CompletionVllmFields(Strict):
    """Those of plain completions."""

    add_special_tokens: Annotated[Any, only(True)] = None
