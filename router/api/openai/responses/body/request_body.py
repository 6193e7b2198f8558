"""The body of `POST /v1/responses` as a strict type. `parsing` says what becomes of fields that are not listed here.

Fields that only hint are accepted with each value that OpenAI's API gives them: `metadata`, `user`,
`safety_identifier`, `service_tier`, `prompt_cache_retention`, `prompt_cache_options`, `max_tool_calls` (which counts
calls of tools that the server runs), and those of `include` about tools that are not served. What samples and places a
request has the names of chat completions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from slipstream.router.api.openai.responses.body.input_items import InputItemField, not_too_many_parts
from slipstream.router.api.openai.responses.body.tool_fields import ToolChoiceField, ToolField, ToolSet
from slipstream.router.api.openai.schema.fields import (
    INT32_MAX,
    Label,
    Strict,
    Unserved,
    field_error,
    only,
)
from slipstream.router.api.openai.schema.sampling_fields import SamplingFields
from slipstream.router.api.openai.schema.structured_fields import SchemaFields
from slipstream.router.api.openai.schema.tools import MAX_TOOLS, ToolUse
from slipstream.router.api.openai.schema.vllm_fields import MAX_LOGPROBS, TemplateKwargs

MAX_CONVERSATION_ITEMS = 20  # that a request may add, as in OpenAI's API
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
StoredId = Annotated[str, Field(min_length=1, max_length=128)]

InputField = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[
        list[InputItemField], Field(min_length=1, fail_fast=True), BeforeValidator(not_too_many_parts), Tag("~items")
    ],
    Discriminator(lambda value: "~string" if isinstance(value, str) else "~items"),
]


class TextFormat(Strict):
    """`strict` makes no difference: output always follows the schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: Label | None = None
    description: str | None = None
    schema_: Annotated[SchemaFields | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> TextFormat:
        if self.type == "json_schema":
            for name, value in (("name", self.name), ("schema", self.schema_)):
                if value is None:
                    raise field_error(name, "is required where `type` is json_schema")
        return self

    def as_json(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        form = {"type": self.type, "name": self.name, "schema": self.schema_, "strict": self.strict}
        return form if self.description is None else {**form, "description": self.description}


class TextFields(Strict):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningFields(Strict):
    """`summary` (before: `generate_summary`) asks for the reasoning where clients show it; it is not made shorter."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Annotated[Any, only("standard")] = None


class ResponseStreamOptions(Strict):
    include_obfuscation: bool | None = None


class ConversationFields(Strict):
    id: StoredId


class ResponsesPrompt(Strict):
    """What makes the prompt of a response."""

    model: Label | None = None
    input: InputField | None = None
    instructions: str | None = None
    previous_response_id: StoredId | None = None
    conversation: (
        Annotated[
            Annotated[StoredId, Tag("~string")] | Annotated[ConversationFields, Tag("~object")],
            Discriminator(lambda value: "~string" if isinstance(value, str) else "~object"),
        ]
        | None
    ) = None
    tools: Annotated[list[ToolField], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: TemplateKwargs | None = None

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, ConversationFields) else given

    @cached_property
    def tool_set(self) -> ToolSet:
        return ToolSet(self.tools or ())

    @cached_property
    def tool_use(self) -> ToolUse | None:
        """The tools, and what may be done with them; None: there are none."""
        return self.tool_set.use(self.tool_choice, self.parallel_tool_calls is not False)

    @model_validator(mode="after")
    def _parts_of_the_prompt_fit_together(self) -> ResponsesPrompt:
        if self.previous_response_id is not None and self.conversation is not None:
            raise field_error("previous_response_id", "is only allowed without `conversation`")
        if self.tools or self.tool_choice is not None:
            self.tool_use  # noqa: B018 - names that come twice, and choices of tools that there are not
        return self


class ResponsesRequest(ResponsesPrompt, SamplingFields):
    """Body of POST /v1/responses."""

    model: Label
    input: InputField
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    include: Annotated[list[Included], Field(max_length=16)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_tool_calls: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    client_metadata: dict[str, Any] | None = None  # Codex's, about itself
    prompt: Unserved = None
    context_management: Annotated[Any, only([])] = None
    moderation: Unserved = None
    # of chat completions, which have other names here
    messages: Annotated[Any, only(advice="the conversation is `input`")] = None
    max_tokens: Annotated[Any, only(advice="its name is `max_output_tokens`")] = None
    max_completion_tokens: Annotated[Any, only(advice="its name is `max_output_tokens`")] = None
    response_format: Annotated[Any, only(advice="its name is `text.format`")] = None
    reasoning_effort: Annotated[Any, only(advice="its name is `reasoning.effort`")] = None
    n: Annotated[Any, only(1)] = None

    @property
    def wants_store(self) -> bool:
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def summary_kind(self) -> str | None:
        """Which summary of the reasoning is asked for; None: none."""
        if self.reasoning is None:
            return None
        asked = self.reasoning.summary or self.reasoning.generate_summary
        return None if asked == "none" else asked

    @property
    def wants_sealed_reasoning(self) -> bool:
        return ENCRYPTED_REASONING in (self.include or ())

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ResponsesRequest:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "is only allowed when `stream` is true")
        if self.background and self.store is False:
            raise field_error("background", "is only allowed where `store` is not false")
        return self


class InputTokensRequest(ResponsesPrompt):
    """Body of POST /v1/responses/input_tokens."""

    personality: Unserved = None
