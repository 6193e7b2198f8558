"""The request bodies of the Messages API as strict types.

Fields that only hint are accepted with each value that Anthropic's API gives them, even where they have no effect:
`service_tier`, `inference_geo`, `user_profile_id`, `diagnostics`, `thinking.budget_tokens`, and of `context_management`
the edit that leaves out earlier thinking, which chat templates decide themselves. What would change the answer and is
not served is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slipstream.router.api.anthropic.cache_control import MAX_BREAKPOINTS, CacheControl
from slipstream.router.api.anthropic.content_blocks import InputMessages, TextContent, ToolResultBlock
from slipstream.router.api.anthropic.tool_fields import MessagesToolChoice, Tools, check_choice
from slipstream.router.api.openai.schema.fields import (
    INT32_MAX,
    FiniteFloat,
    Label,
    StopString,
    Strict,
    Unserved,
    exactly,
    field_error,
    only,
)
from slipstream.router.api.openai.schema.sampling_fields import MAX_STOPS
from slipstream.router.api.openai.schema.serving_fields import ServingFields
from slipstream.router.api.openai.schema.vllm_fields import TemplateKwargs

MIN_BUDGET_TOKENS = 1024
MAX_EDITS = 16
NO_COMMAND = "the conversation is sent as it is"


class ThinkingFields(Strict):
    """Whether the model is to think first. `adaptive` leaves it to the model how much; `between_tools` lets it think
    once results of tools have come. `display: omitted` leaves the text out of the answer, and puts it into the
    signature, so that a client can give it back."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=MIN_BUDGET_TOKENS, le=INT32_MAX)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _a_budget_where_one_is_meant(self) -> ThinkingFields:
        if self.type == "enabled" and self.budget_tokens is None:
            raise field_error("budget_tokens", "is required where `type` is enabled")
        if self.type != "enabled" and self.budget_tokens is not None:
            raise field_error("budget_tokens", "is only allowed where `type` is enabled")
        return self


class JsonOutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutputFormat | None = None
    task_budget: Unserved = None


class RequestMetadata(Strict):
    user_id: Label | None = None


class ContextEdit(Strict):
    type: Annotated[Any, exactly("clear_thinking_20251015", kind="edits of type", advice=NO_COMMAND)]
    keep: Any = None


class ContextManagement(Strict):
    edits: Annotated[list[ContextEdit], Field(max_length=MAX_EDITS, fail_fast=True)] | None = None


class MessagesPrompt(Strict):
    """What makes the prompt."""

    model: Label
    messages: InputMessages
    system: TextContent | None = None
    tools: Tools | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingFields | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutputFormat | None = None  # the older place of `output_config.format`
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    mcp_servers: Annotated[Any, only([])] = None
    speed: Annotated[Any, only("standard")] = None
    compaction: Unserved = None
    user_profile_id: Label | None = None

    @property
    def schema_format(self) -> JsonOutputFormat | None:
        """The schema that the answer has to follow."""
        inner = self.output_config.format if self.output_config is not None else None
        return inner or self.output_format

    @property
    def pinned_s(self) -> float:
        """For how long the client wants prefixes of its prompt to be kept, the longest of all; 0: it does not say."""
        return max([control.ttl_s for control in self.cache_controls()], default=0.0)

    def cache_controls(self) -> Iterator[CacheControl]:
        """All of them."""
        if self.cache_control is not None:
            yield self.cache_control
        system = self.system if isinstance(self.system, list) else []
        contents = [message.content for message in self.messages if not isinstance(message.content, str)]
        for holder in (*(self.tools or ()), *system, *(block for content in contents for block in content)):
            control = getattr(holder, "cache_control", None)  # blocks of thinking have none
            if control is not None:
                yield control
            if isinstance(holder, ToolResultBlock) and isinstance(holder.content, list):
                yield from (block.cache_control for block in holder.content if block.cache_control is not None)

    @model_validator(mode="after")
    def _fields_fit_together(self) -> MessagesPrompt:
        check_choice(self.tools, self.tool_choice)
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise field_error("output_format", "is the older name of `output_config.format`; give one of them")
        num_breakpoints = sum(1 for _ in self.cache_controls())
        if num_breakpoints > MAX_BREAKPOINTS:
            message = (
                f"is there {num_breakpoints} times in 'messages', 'system' and 'tools'; there may be {MAX_BREAKPOINTS}"
            )
            raise field_error("cache_control", message)
        return self


class CountTokensRequest(MessagesPrompt):
    """Body of POST /v1/messages/count_tokens."""


class MessagesRequest(MessagesPrompt, ServingFields):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)]  # 0: the prompt is computed, for the requests that follow
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    stream: bool | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: Label | None = None
    diagnostics: dict[str, Any] | None = None
    container: Unserved = None
    fallbacks: Annotated[Any, only([])] = None
    thread: dict[str, Any] | None = None  # refused in a way that clients understand, and go on without

    @property
    def user(self) -> str | None:
        return self.metadata.user_id if self.metadata is not None else None

    @model_validator(mode="after")
    def _room_for_the_budget(self) -> MessagesRequest:
        budget = self.thinking.budget_tokens if self.thinking is not None else None
        if budget is not None and budget >= self.max_tokens:
            raise field_error("max_tokens", f"is {self.max_tokens}; it must be over `thinking.budget_tokens`, {budget}")
        return self
