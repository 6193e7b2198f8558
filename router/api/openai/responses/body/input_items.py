"""The items of an input: messages, what an assistant thought, its calls of tools, and their results.

Items of an answer may come back as they were sent, so all fields of an output item are known here. Items that need a
tool or a medium which is not served are refused by their type.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from slipstream.router.api.openai.schema.fields import Label, Strict, exactly, field_error

MAX_ITEMS = 8192  # also the limit for the parts of all items together
MAX_REASONING_CHARS = 16 << 20
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
ONLY_TEXT = "only text is served"
Status = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[str, Field(max_length=512)]
CallId = Annotated[str, Field(min_length=1, max_length=512)]
CalledName = Annotated[str, Field(min_length=1, max_length=256)]  # what a model has written, be it a tool or not
Namespace = Annotated[str, Field(min_length=1, max_length=128)]


class InputText(Strict):
    """A part of a message, or of a tool's result. A refusal is what the assistant said in place of an answer."""

    type: Annotated[Any, exactly(*TEXT_PARTS, kind="content parts of type", advice=ONLY_TEXT)]
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None  # of an answer, and no part of what was said
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None  # a hint: prefixes are found without it

    @model_validator(mode="after")
    def _has_its_text(self) -> InputText:
        name = "refusal" if self.type == "refusal" else "text"
        if getattr(self, name) is None:
            raise field_error(name, "is required")
        return self

    @property
    def content(self) -> str:
        return self.refusal or "" if self.type == "refusal" else self.text or ""


def content_kind(value: Any) -> str:
    return "~string" if isinstance(value, str) else "~parts"


Content = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[InputText], Field(fail_fast=True), Tag("~parts")],
    Discriminator(content_kind),
]


class MessageItem(Strict):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: ItemId | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class ReasoningText(Strict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Strict):
    """`encrypted_content` is opaque to clients; `reasoning_seal` says what is in it."""

    type: Literal["reasoning"]
    id: ItemId | None = None
    summary: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    encrypted_content: Annotated[str, Field(max_length=MAX_REASONING_CHARS)] | None = None
    status: Status | None = None


class FunctionCallItem(Strict):
    type: Literal["function_call"]
    call_id: CallId
    name: CalledName
    arguments: str
    namespace: Namespace | None = None
    id: ItemId | None = None
    status: Status | None = None
    caller: Any = None


class CustomCallItem(Strict):
    type: Literal["custom_tool_call"]
    call_id: CallId
    name: CalledName
    input: str
    namespace: Namespace | None = None
    id: ItemId | None = None
    status: Status | None = None
    caller: Any = None


class CallOutputItem(Strict):
    """The result of a call of either kind."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Content
    name: Label | None = None
    namespace: Label | None = None
    id: ItemId | None = None
    status: Status | None = None
    caller: Any = None


class ItemReference(Strict):
    """Stands for an item of a stored response or conversation."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, Field(min_length=1, max_length=512)]


class UnservedItem(Strict):
    type: Any

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        raise unserved_item(value)


# An `UnservedItem` is never made.
InputItem = (
    MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | CallOutputItem | ItemReference | UnservedItem
)

SERVED_ITEMS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "item_reference",
)
ITEM_TAGS = {
    "message": "~message",
    "reasoning": "~reasoning",
    "function_call": "~function_call",
    "function_call_output": "~call_output",
    "custom_tool_call": "~custom_call",
    "custom_tool_call_output": "~call_output",
    "item_reference": "~item_reference",
}


def item_kind(value: Any) -> str:
    """The kind of an item; one without a type is a message, or a reference if all that it has is an id."""
    if not isinstance(value, dict):
        return "~message"
    kind = value.get("type")
    if kind is None:
        return "~item_reference" if "id" in value and "role" not in value and "content" not in value else "~message"
    return ITEM_TAGS.get(kind, "~unserved") if isinstance(kind, str) else "~unserved"


InputItemField = Annotated[
    Annotated[MessageItem, Tag("~message")]
    | Annotated[ReasoningItem, Tag("~reasoning")]
    | Annotated[FunctionCallItem, Tag("~function_call")]
    | Annotated[CustomCallItem, Tag("~custom_call")]
    | Annotated[CallOutputItem, Tag("~call_output")]
    | Annotated[ItemReference, Tag("~item_reference")]
    | Annotated[UnservedItem, Tag("~unserved")],
    Discriminator(item_kind),
]


def unserved_item(value: Any) -> PydanticCustomError:
    kind = value.get("type") if isinstance(value, dict) else value
    from_known = ", ".join(SERVED_ITEMS)
    return PydanticCustomError(
        "unsupported",
        "{message}",
        {"field": "type", "message": f"items of type {kind!r:.64} are not supported; accepted: {from_known}"},
    )


def not_too_many_parts(items: Any) -> Any:
    """Bounds the number of items, and of the parts of all items together."""
    if isinstance(items, list):
        num_parts = 0
        for item in items:
            if isinstance(item, dict):
                for name in ("content", "output", "summary"):
                    parts = item.get(name)
                    num_parts += len(parts) if type(parts) is list else 0
        if max(num_parts, len(items)) > MAX_ITEMS:
            raise PydanticCustomError("too_long", "has more than {limit} items or parts", {"limit": MAX_ITEMS})
    return items


def text_of(content: str | list[InputText]) -> str | list[str]:
    """The text of a message or a result, by its parts if it has several."""
    if isinstance(content, str):
        return content
    texts = [part.content for part in content]
    return texts[0] if len(texts) == 1 else texts
