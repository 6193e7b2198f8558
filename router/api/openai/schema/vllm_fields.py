"""Fields of vLLM. Its clients send many of them with their default values, which ask for nothing and are accepted.
Those that are not served are refused by name with another value. Beam search and what restricts the tokens are checked
further in `beam_fields` and `restrictions`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from slipstream.router.api.openai.schema.fields import (
    FiniteFloat,
    Label,
    StopString,
    Strict,
    TokenId,
    Unserved,
    at_most,
    field_error,
    only,
)

MAX_TEMPLATE_KWARGS = 16
MAX_TEMPLATE_CHARS = 512
MAX_ALLOWED = 1 << 18  # more than most vocabularies have
MAX_BAD_WORDS = 256
MAX_PROCESSORS = 8
MAX_LOGPROBS = 20  # best tokens beside each
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


def not_the_vocabulary(num_top: int) -> int:
    """Refuses vLLM's word for all tokens of the vocabulary."""
    if num_top < 0:
        message = "the log-probabilities of the whole vocabulary (-1) are not supported; accepted: 0 to {most}"
        raise PydanticCustomError("whole_vocabulary", message, {"most": MAX_LOGPROBS})
    return num_top


class ProcessorObject(Strict):
    """A logits processor with keyword arguments. `qualname` and `kwargs` are vLLM's names."""

    name: Label | None = None
    qualname: Label | None = None
    args: dict[str, Any] | None = None
    kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ProcessorObject:
        if (self.name is None) == (self.qualname is None):
            raise field_error("name", "is required, or `qualname` in its place")
        if self.args is not None and self.kwargs is not None:
            raise field_error("args", "differs from `kwargs`; give one of them")
        return self


ProcessorChoice = Annotated[
    Annotated[Label, Tag("~string")] | Annotated[ProcessorObject, Tag("~object")],
    Discriminator(lambda value: "~string" if isinstance(value, str) else "~object"),
]


class VllmFields(Strict):
    """Those that both endpoints have in common."""

    spaces_between_special_tokens: bool | None = None  # without effect: tokenizers of today put none there
    use_beam_search: bool | None = None
    length_penalty: Annotated[FiniteFloat, Field(ge=-5, le=5)] | None = None
    early_stopping: Annotated[Any, only(True, False, "never")] = None
    truncate_prompt_tokens: Unserved = None
    prompt_logprobs: Annotated[int, Field(ge=-1, le=MAX_LOGPROBS), AfterValidator(not_the_vocabulary)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED, fail_fast=True)] | None = (
        None
    )
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None
    logits_processors: Annotated[list[ProcessorChoice], Field(max_length=MAX_PROCESSORS, fail_fast=True)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    kv_transfer_params: Annotated[Any, only({})] = None
    vllm_xargs: Annotated[Any, only({})] = None


class ChatVllmFields(Strict):
    """Those of chat completions. `chat_template_kwargs` are variables for the chat template, as `enable_thinking` of
    Qwen3's."""

    chat_template_kwargs: TemplateKwargs | None = None
    chat_template: Unserved = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: Annotated[Any, only(False)] = None
    echo: Annotated[Any, only(False)] = None
    documents: Annotated[Any, only([])] = None
    mm_processor_kwargs: Annotated[Any, only({})] = None
    include_reasoning: bool | None = None
    enable_thinking: bool | None = None  # of Qwen's own API


class CompletionVllmFields(Strict):
    """Those of plain completions."""

    add_special_tokens: Annotated[Any, only(True)] = None
