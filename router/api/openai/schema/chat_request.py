"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from slipstream.router.api.openai.schema.fields import INT32_MAX, Label, Unserved, field_error, only
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.api.openai.schema.messages import ChatMessage, not_too_many_parts
from slipstream.router.api.openai.schema.tools import (
    MAX_TOOLS,
    FunctionCallField,
    FunctionFields,
    ToolChoiceField,
    ToolFields,
    ToolUse,
    check_use,
    legacy_use_of,
    needs_tools,
    not_both,
    use_of,
)
from slipstream.router.api.openai.schema.vllm_fields import MAX_LOGPROBS, ChatVllmFields
from slipstream.router.protocol.generation import Retention

MAY_COME_BACK = Retention()
CHOICES_WITHOUT_TOOLS = ("none", "auto", None)  # OpenAI refuses them; clients send them all the same
TOOL_FIELDS = frozenset({"tools", "tool_choice", "functions", "function_call"})
NO_VARIABLES: Mapping[str, Any] = {}
THINKING_OFF = {"enable_thinking": False, "thinking": False}  # of Qwen's templates; of DeepSeek's and Granite's


class ChatRequest(ChatVllmFields, GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True), BeforeValidator(not_too_many_parts)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    tools: Annotated[list[ToolFields], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoiceField | None = None
    functions: Annotated[list[FunctionFields], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    function_call: FunctionCallField | None = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Unserved = None
    web_search_options: Unserved = None

    @property
    def stated_max_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def cache_key(self) -> str:
        return self.prompt_cache_key or ""

    @property
    def retention(self) -> Retention | None:
        if self.retention_s is not None:
            return Retention(self.retention_s)
        return MAY_COME_BACK if self.tool_use is not None or self.session_id else None

    @property
    def served_tier(self) -> str:
        return "default" if self.service_tier is not None else ""

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """The variables for the chat template. Besides `chat_template_kwargs` they have the `reasoning_effort`, as in
        vLLM; "none" turns thinking off where a template can do that, as in SGLang."""
        given = self.chat_template_kwargs or NO_VARIABLES
        if self.reasoning_effort is None and self.verbosity is None and self.enable_thinking is None:
            return given
        variables: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            variables["reasoning_effort"] = self.reasoning_effort
            variables |= THINKING_OFF if self.reasoning_effort == "none" else NO_VARIABLES
        if self.verbosity is not None:
            variables["verbosity"] = self.verbosity
        if self.enable_thinking is not None:
            variables |= dict.fromkeys(THINKING_OFF, self.enable_thinking)
        return {**variables, **given}

    @property
    def continued(self) -> str:
        """The text of the last message, if the answer is to go on with it."""
        if not self.continue_final_message:
            return ""
        content = self.messages[-1].content
        return content if isinstance(content, str) else "".join([part.text for part in content or ()])

    @cached_property
    def tool_use(self) -> ToolUse | None:
        """The tools, and what may be done with them; None: there are none."""
        if self.functions:
            return legacy_use_of(self.functions, self.function_call)
        return use_of(self.tools, self.tool_choice, self.parallel_tool_calls is not False)

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatRequest:
        if not self.model_fields_set.isdisjoint(TOOL_FIELDS):
            self._check_tools()
        if self.continue_final_message or self.add_generation_prompt is False:
            self._check_continued()
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", f"is {self.top_logprobs}, which needs `logprobs` to be true")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise field_error(
                "max_tokens",
                f"is {self.max_tokens}, which differs from `max_completion_tokens`, {self.max_completion_tokens}; give "
                "one of them",
            )
        return self

    def _check_continued(self) -> None:
        if not self.continue_final_message:
            raise field_error("add_generation_prompt", "may only be false where `continue_final_message` is true")
        if self.add_generation_prompt:
            raise field_error("add_generation_prompt", "is true, which excludes `continue_final_message`")
        last = self.messages[-1]
        if last.role != "assistant" or last.tool_calls or last.function_call is not None or not self.continued:
            raise field_error("continue_final_message", "needs a last message of the role 'assistant' that has text")

    def _check_tools(self) -> None:
        if self.functions and self.tools:
            raise not_both("functions", "tools", self.functions)
        if not self.tools and self.tool_choice not in CHOICES_WITHOUT_TOOLS:
            raise needs_tools("tool_choice", "tools")
        if not self.functions and self.function_call not in CHOICES_WITHOUT_TOOLS:
            raise needs_tools("function_call", "functions")
        use = self.tool_use
        if use is not None:
            check_use(use)
