"""The fields of a chat request about tools: the functions that a model may call, and which of them it has to call.

`tool_choice` has the forms of OpenAI's chat completions, and for a function and for `allowed_tools` also those of its
Responses API, which have no object inside. The older `functions` and `function_call` ask for the same in other words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from slipstream.router.api.openai.schema.fields import Strict, exactly, field_error, unsupported

MAX_TOOLS = 1024
NAME = r"^[a-zA-Z0-9_.-]{1,256}$"  # OpenAI has neither dots nor more than 64 characters; tools of MCP servers have
ONLY_FUNCTIONS = "describe the tool as a function, and run it in the client"
# What a function without `parameters` has, in OpenAI's words.
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

ToolMode = Literal["none", "auto", "required"]
ToolName = Annotated[str, Field(pattern=NAME)]


class FunctionFields(Strict):
    """Arguments follow the schema in any case. Where that cannot be followed, `strict` makes it an error."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(Strict):
    type: Annotated[Any, exactly("function", kind="tools of type", advice=ONLY_FUNCTIONS)]
    function: FunctionFields


class ToolNameField(Strict):
    name: ToolName


class NamedTool(Strict):
    """One function, in either spelling."""

    type: Annotated[Any, exactly("function", kind="choices of type", advice="or `allowed_tools`")]
    function: ToolNameField | None = None
    name: ToolName | None = None

    @model_validator(mode="after")
    def _has_a_name(self) -> NamedTool:
        if (self.function is None) == (self.name is None):
            raise field_error("function", "is required, with the name of a function")
        return self

    @property
    def chosen(self) -> str:
        return self.function.name if self.function is not None else self.name or ""


NamedTools = Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: NamedTools


class AllowedChoice(Strict):
    """Some of the tools, in either spelling."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools | None = None
    mode: Literal["auto", "required"] | None = None
    tools: NamedTools | None = None

    @model_validator(mode="after")
    def _has_tools(self) -> AllowedChoice:
        if self.allowed_tools is None and (self.mode is None or self.tools is None):
            raise field_error("allowed_tools", "is required, with `mode` and `tools`")
        return self

    @property
    def chosen(self) -> tuple[ToolMode, tuple[str, ...]]:
        inner = self.allowed_tools
        mode, tools = (self.mode, self.tools) if inner is None else (inner.mode, inner.tools)
        assert mode is not None
        return mode, tuple(dict.fromkeys(tool.chosen for tool in tools or ()))


def choice_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "~string"
    return "~allowed" if value.get("type") == "allowed_tools" else "~function"


ToolChoiceField = Annotated[
    Annotated[ToolMode, Tag("~string")]
    | Annotated[NamedTool, Tag("~function")]
    | Annotated[AllowedChoice, Tag("~allowed")],
    Discriminator(choice_kind),
]
FunctionCallField = Annotated[
    Annotated[Literal["none", "auto"], Tag("~string")] | Annotated[ToolNameField, Tag("~function")],
    Discriminator(choice_kind),
]


class Tool(NamedTuple):
    """A function that the model may call. `parameters` is the JSON schema of its arguments, None if it has none. With
    `is_strict`, it is an error if that cannot be followed."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    is_strict: bool = False

    def as_json(self) -> dict[str, Any]:
        """As chat templates show it: OpenAI's object without `strict`."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = NO_PARAMETERS if self.parameters is None else self.parameters
        return {"type": "function", "function": function}


class ToolUse(NamedTuple):
    """The tools of a request and what may be done with them. Calls are constrained to those of `allowed`, None: all.
    With `is_named` there has to be a call of the one tool that is allowed. With `mode` "none" the model knows the
    tools, and no call is read from what it writes. `is_parallel`: an answer may have several calls. `is_legacy`: the
    answer has OpenAI's older `function_call`."""

    tools: tuple[Tool, ...]
    mode: ToolMode = "auto"
    allowed: tuple[str, ...] | None = None
    is_parallel: bool = True
    is_legacy: bool = False
    is_named: bool = False

    @property
    def field(self) -> str:
        """The one that the tools came in."""
        return "functions" if self.is_legacy else "tools"

    @property
    def reads_calls(self) -> bool:
        return self.mode != "none"

    def place_of(self, index: int) -> str:
        """Where the parameters of a tool stand in the request."""
        return f"functions.{index}.parameters" if self.is_legacy else f"tools.{index}.function.parameters"

    @property
    def max_calls(self) -> int | None:
        """The most calls of one answer, None: any number."""
        return None if self.is_parallel else 1


def tools_of(functions: Iterable[FunctionFields]) -> tuple[Tool, ...]:
    return tuple(Tool(one.name, one.description, one.parameters, bool(one.strict)) for one in functions)


def use_of(
    tools: list[ToolFields] | None,
    choice: str | NamedTool | AllowedChoice | None,
    is_parallel: bool,
) -> ToolUse | None:
    """What the present fields ask for; None: there are no tools."""
    if not tools:
        return None
    use = ToolUse(tools_of(tool.function for tool in tools), is_parallel=is_parallel)
    match choice:
        case "none" | "auto" | "required":
            return use._replace(mode=choice)
        case NamedTool():
            return use._replace(mode="required", allowed=(choice.chosen,), is_parallel=False, is_named=True)
        case AllowedChoice():
            mode, names = choice.chosen
            return use._replace(mode=mode, allowed=names)
        case _:
            return use


def legacy_use_of(functions: list[FunctionFields] | None, call: str | ToolNameField | None) -> ToolUse | None:
    """What the older fields ask for; None: there are no functions."""
    if not functions:
        return None
    use = ToolUse(tools_of(functions), is_parallel=False, is_legacy=True)
    if isinstance(call, ToolNameField):
        return use._replace(mode="required", allowed=(call.name,), is_named=True)
    return use._replace(mode="none") if call == "none" else use


def check_use(use: ToolUse) -> None:
    """Raises PydanticCustomError for a name that comes twice, and for a choice of a tool that there is not."""
    field, choice = use.field, "function_call" if use.is_legacy else "tool_choice"
    seen = set[str]()
    for index, tool in enumerate(use.tools):
        if tool.name in seen:
            place = f"{field}.{index}.name" if use.is_legacy else f"{field}.{index}.function.name"
            raise field_error(place, f"is {tool.name!r}, which another tool has; names must be unique")
        seen.add(tool.name)
    for name in use.allowed or ():
        if name not in seen:
            raise field_error(choice, f"asks for the tool {name!r}, which was not found in '{field}'")


def needs_tools(field: str, tools_field: str) -> PydanticCustomError:
    """A choice among no tools, in OpenAI's words."""
    return field_error(field, f"is only allowed when '{tools_field}' are specified")


def not_both(field: str, other: str, value: Any) -> PydanticCustomError:
    return unsupported(value, (None,), field=field, advice=f"give the functions as `{other}` alone")
