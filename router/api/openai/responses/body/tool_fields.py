"""The fields of a request about tools.

A model knows functions only. A custom tool, which takes free text, is shown to it as a function with one parameter of
text; the functions of a namespace stand under names that begin with that of the namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from slipstream.router.api.openai.schema.fields import Strict, exactly, field_error
from slipstream.router.api.openai.schema.tools import MAX_TOOLS, NAME, Tool, ToolMode, ToolUse

ToolName = Annotated[str, Field(pattern=NAME)]
MAX_GRAMMAR_CHARS = 64 << 10
INPUT = "input"  # the parameter of a custom tool

# Tools of OpenAI's own that clients list unasked. They are left out; a model does not hear of them.
LEFT_OUT = frozenset(
    {"web_search", "web_search_preview", "web_search_2025_08_26", "web_search_preview_2025_03_11", "image_generation"}
    | {"tool_search"}
)
SERVED_TOOLS = ("function", "custom", "namespace")
ADVICE = "describe the tool as a function or a custom tool, and run it in the client"


class FunctionTool(Strict):
    """Arguments follow the schema in any case. Where that cannot be followed, `strict` makes it an error."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None  # describes results, which the client makes
    defer_loading: bool | None = None
    allowed_callers: list[Any] | None = None

    def as_json(self) -> dict[str, Any]:
        return {"strict": None, "parameters": None, **self.model_dump(exclude_unset=True)}


class CustomFormat(Strict):
    """What the text for a custom tool has to be."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)] | None = None

    @model_validator(mode="after")
    def _has_a_grammar(self) -> CustomFormat:
        if self.type == "grammar":
            for name in ("syntax", "definition"):
                if getattr(self, name) is None:
                    raise field_error(name, "is required where `type` is grammar")
        return self


class CustomTool(Strict):
    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: CustomFormat | None = None
    defer_loading: bool | None = None
    allowed_callers: list[Any] | None = None

    def as_json(self) -> dict[str, Any]:
        return {"format": {"type": "text"}, **self.model_dump(exclude_unset=True)}


def inner_kind(value: Any) -> str:
    return "~custom" if isinstance(value, dict) and value.get("type") == "custom" else "~function"


InnerTool = Annotated[
    Annotated[FunctionTool, Tag("~function")] | Annotated[CustomTool, Tag("~custom")], Discriminator(inner_kind)
]


class NamespaceTool(Strict):
    """Tools that belong together. A call of one of them has the namespace's name beside its own."""

    type: Literal["namespace"]
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    tools: Annotated[list[InnerTool], Field(max_length=MAX_TOOLS, fail_fast=True)]

    def as_json(self) -> dict[str, Any]:
        description = self.description or ""
        tools = [tool.as_json() for tool in self.tools]
        return {"type": self.type, "name": self.name, "description": description, "tools": tools}


class HostedTool(Strict):
    """A tool that OpenAI runs. Whatever fields it has are its own."""

    type: str
    fields: Any = None

    @model_validator(mode="before")
    @classmethod
    def _is_left_out(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else value
        if not isinstance(kind, str) or kind not in LEFT_OUT:
            raise unserved_tool(kind)
        return {"type": kind}


def tool_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"~{kind}" if isinstance(kind, str) and kind in SERVED_TOOLS else "~hosted"


ToolField = Annotated[
    Annotated[FunctionTool, Tag("~function")]
    | Annotated[CustomTool, Tag("~custom")]
    | Annotated[NamespaceTool, Tag("~namespace")]
    | Annotated[HostedTool, Tag("~hosted")],
    Discriminator(tool_kind),
]


def unserved_tool(kind: Any) -> PydanticCustomError:
    message = f"tools of type {kind!r:.64} are not supported; accepted: {', '.join(SERVED_TOOLS)}; {ADVICE}"
    return PydanticCustomError("unsupported", "{message}", {"field": "type", "message": message})


class ChosenTool(Strict):
    """One tool by its name, or one of OpenAI's by its type."""

    type: str
    name: ToolName | None = None
    namespace: ToolName | None = None
    server_label: str | None = None


class ToolChoice(Strict):
    """A choice that is an object."""

    type: Annotated[Any, exactly("function", "custom", "allowed_tools", kind="choices of type", advice=ADVICE)]
    name: ToolName | None = None
    namespace: ToolName | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[ChosenTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> ToolChoice:
        needed = ("mode", "tools") if self.type == "allowed_tools" else ("name",)
        for name in needed:
            if not getattr(self, name):
                raise field_error(name, "is required")
        return self


ToolChoiceField = Annotated[
    Annotated[ToolMode, Tag("~string")] | Annotated[ToolChoice, Tag("~object")],
    Discriminator(lambda value: "~object" if isinstance(value, dict) else "~string"),
]


class CallableTool(NamedTuple):
    """A tool with the names that the client has for it. `field` is its place in the request."""

    tool: FunctionTool | CustomTool
    namespace: str
    field: str

    @property
    def function_name(self) -> str:
        return flat_name(self.namespace, self.tool.name)

    @property
    def is_custom(self) -> bool:
        return isinstance(self.tool, CustomTool)

    def function(self) -> Tool:
        """As the model is shown it."""
        tool = self.tool
        if isinstance(tool, CustomTool):
            return Tool(self.function_name, described(tool), parameters_of(tool))
        return Tool(self.function_name, tool.description, tool.parameters, bool(tool.strict))


class ToolSet:
    """The tools of a request by the names that the model knows them by; `left_out` are the types of those that it does
    not hear of. Raises PydanticCustomError for a name that comes twice."""

    def __init__(self, fields: Iterable[FunctionTool | CustomTool | NamespaceTool | HostedTool]) -> None:
        self.by_name: dict[str, CallableTool] = {}
        self.left_out: list[str] = []
        for index, field in enumerate(fields):
            if isinstance(field, HostedTool):
                self.left_out.append(field.type)
            elif isinstance(field, NamespaceTool):
                for inner, tool in enumerate(field.tools):
                    self._add(CallableTool(tool, field.name, f"tools.{index}.tools.{inner}"))
            else:
                self._add(CallableTool(field, "", f"tools.{index}"))

    @property
    def places(self) -> list[str]:
        """Where the tools stand in the request, in the order of the functions that a model is shown."""
        return [tool.field for tool in self.by_name.values()]

    def _add(self, tool: CallableTool) -> None:
        name = tool.function_name
        if name in self.by_name:
            raise field_error(
                f"{tool.field}.name", f"is {tool.tool.name!r}, which another tool has; names must be unique"
            )
        self.by_name[name] = tool

    def use(self, choice: str | ToolChoice | None, is_parallel: bool) -> ToolUse | None:
        """What may be done with the tools; None: there are none. Raises PydanticCustomError for a choice of a tool that
        there is not."""
        if not self.by_name:
            if choice not in (None, "none", "auto") and not (isinstance(choice, ToolChoice) and choice.mode == "auto"):
                raise field_error("tool_choice", f"asks for a tool, and there is none{self._but_left_out()}")
            return None
        functions = tuple(tool.function() for tool in self.by_name.values())
        use = ToolUse(functions, is_parallel=is_parallel)
        if choice is None:
            return use
        if not isinstance(choice, ToolChoice):
            return use._replace(mode=choice)  # type: ignore[arg-type]
        if choice.type == "allowed_tools":
            assert choice.mode is not None
            asked = [tool for tool in choice.tools or () if tool.type not in LEFT_OUT]
            if not asked:
                if choice.mode == "required":
                    raise field_error("tool_choice", f"asks for a tool, and there is none{self._but_left_out()}")
                return use._replace(mode="none")
            names = [self._found(tool.type, tool.name, tool.namespace) for tool in asked]
            return use._replace(mode=choice.mode, allowed=tuple(dict.fromkeys(names)))
        name = self._found(choice.type, choice.name, choice.namespace)
        return use._replace(mode="required", allowed=(name,), is_parallel=False, is_named=True)

    def _found(self, kind: str, name: str | None, namespace: str | None) -> str:
        """The name that the model knows a tool by; a tool of a namespace can be asked for by its own name alone."""
        own = flat_name(namespace or "", name or "")
        if own in self.by_name and self.by_name[own].tool.type == kind:
            return own
        for known, tool in self.by_name.items():
            if tool.tool.name == name and tool.tool.type == kind and namespace in (None, tool.namespace):
                return known
        asked = f"the tool {name!r}" if name else f"a tool of type {kind!r:.64}"
        raise field_error("tool_choice", f"asks for {asked}, which was not found in 'tools'")

    def _but_left_out(self) -> str:
        kinds = ", ".join(dict.fromkeys(self.left_out))
        return f" but those that this server does not have: {kinds}" if kinds else ""


def flat_name(namespace: str, name: str) -> str:
    """The name of a function of a namespace, as a model is shown it."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def described(tool: CustomTool) -> str:
    """The description of a custom tool, with the grammar of its text."""
    lines = [tool.description or "", f"Write the text for this tool as the value of `{INPUT}`."]
    form = tool.format
    if form is not None and form.type == "grammar":
        name = "regular expression" if form.syntax == "regex" else "Lark grammar"
        lines.append(f"The text must follow this {name}:\n{form.definition}")
    return "\n\n".join(line for line in lines if line)


def parameters_of(tool: CustomTool) -> dict[str, Any]:
    """A regular expression is followed; of a Lark grammar the model only reads, as it cannot be put into the string of
    a JSON object."""
    text: dict[str, Any] = {"type": "string"}
    form = tool.format
    if form is not None and form.syntax == "regex":
        text["pattern"] = f"^(?:{form.definition})$"
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
