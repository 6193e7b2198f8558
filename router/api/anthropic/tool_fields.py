"""The tools of a request, and which of them are to be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from slipstream.router.api.anthropic.cache_control import Cacheable
from slipstream.router.api.openai.schema.fields import Strict, exactly, field_error, only
from slipstream.router.api.openai.schema.tools import MAX_TOOLS, Tool, ToolName, ToolUse

ONLY_CUSTOM = "describe the tool with an `input_schema`, and run it in the client"


class MessagesTool(Cacheable):
    """A tool that the client runs. All tools are shown to the model from the beginning, whatever `defer_loading` says,
    and inputs are streamed as they are written (`eager_input_streaming`). `input_examples` have no effect."""

    type: Annotated[Any, exactly("custom", None, kind="tools of type", advice=ONLY_CUSTOM)] = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: Annotated[Any, only([], ["direct"])] = None


def differ_in_name(tools: Sequence[MessagesTool]) -> Sequence[MessagesTool]:
    seen = set[str]()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise field_error(f"{index}.name", f"is {tool.name!r}, which another tool has; names must be unique")
        seen.add(tool.name)
    return tools


Tools = Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True), AfterValidator(differ_in_name)]


class MessagesToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _a_name_where_one_is_meant(self) -> MessagesToolChoice:
        if self.type == "tool" and self.name is None:
            raise field_error("name", "is required where `type` is tool")
        if self.type != "tool" and self.name is not None:
            raise field_error("name", "is only allowed where `type` is tool")
        return self


def use_of(tools: Sequence[MessagesTool] | None, choice: MessagesToolChoice | None) -> ToolUse | None:
    """What the fields ask for; None: there are no tools."""
    if not tools:
        return None
    made = tuple(Tool(tool.name, tool.description, tool.input_schema, bool(tool.strict)) for tool in tools)
    use = ToolUse(made, is_parallel=not (choice is not None and choice.disable_parallel_tool_use))
    if choice is not None and choice.name is not None:
        return use._replace(mode="required", allowed=(choice.name,), is_parallel=False, is_named=True)
    match choice.type if choice is not None else "auto":
        case "any":
            return use._replace(mode="required")
        case "none":
            return use._replace(mode="none")
        case _:
            return use


def check_choice(tools: Sequence[MessagesTool] | None, choice: MessagesToolChoice | None) -> None:
    """Raises PydanticCustomError for a choice of a tool that there is not."""
    if choice is None or choice.type == "none":
        return
    if choice.type != "auto" and not tools:
        raise field_error("tool_choice", "is only allowed when 'tools' are specified")
    if choice.name is not None and all(tool.name != choice.name for tool in tools or ()):
        raise field_error("tool_choice.name", f"asks for the tool {choice.name!r}, which was not found in 'tools'")
