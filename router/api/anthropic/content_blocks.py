"""The content of messages: blocks of text, thinking, calls of tools and their results. Others are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from slipstream.router.api.anthropic.cache_control import Cacheable
from slipstream.router.api.openai.schema.fields import Label, Strict, only, unsupported
from slipstream.router.api.openai.schema.messages import MAX_MESSAGES, CalledName, CallIdField

SERVED_TYPES = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
TAGS = {name: f"~{name}" for name in SERVED_TYPES}
ONLY_TEXT = "this server takes text"
DIRECT_CALLER = {"type": "direct"}


def block_kind(value: Any) -> str:
    """The tag of a block. What has no type is taken for a text, and what is missing in it is said."""
    kind = value.get("type", "text") if isinstance(value, dict) else getattr(value, "type", "text")
    return TAGS.get(kind, "~unserved") if isinstance(kind, str) else "~unserved"


def text_kind(value: Any) -> str:
    """The tag of a block where only text is taken."""
    return "~text" if block_kind(value) == "~text" else "~unserved"


def content_kind(value: Any) -> str:
    return "~string" if isinstance(value, str) else "~parts"


def refuses(*served: str) -> BeforeValidator:
    """Names the type of a block that is not served."""

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else value
        raise unsupported(kind, served, field="type", kind="content blocks of type", advice=ONLY_TEXT)

    return BeforeValidator(check)


class TextBlock(Cacheable):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = None  # of what an assistant said, and no part of it


class ThinkingBlock(Strict):
    """`signature` is this server's, or any other's."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Strict):
    """What another server has thought and sealed: no use to a model here."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Cacheable):
    type: Literal["tool_use"]
    id: CallIdField
    name: CalledName
    input: dict[str, Any]
    caller: Annotated[Any, only(DIRECT_CALLER)] = None
    toolset_name: Label | None = None


TextOnly = Annotated[
    Annotated[TextBlock, Tag("~text")] | Annotated[Any, refuses("text"), Tag("~unserved")], Discriminator(text_kind)
]
TextContent = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[TextOnly], Field(max_length=MAX_MESSAGES, fail_fast=True), Tag("~parts")],
    Discriminator(content_kind),
]


class ToolResultBlock(Cacheable):
    type: Literal["tool_result"]
    tool_use_id: CallIdField
    content: TextContent | None = None
    is_error: bool | None = None
    toolset_name: Label | None = None

    @property
    def texts(self) -> list[str]:
        return texts_of(self.content)


AnyBlock = Annotated[
    Annotated[TextBlock, Tag("~text")]
    | Annotated[ThinkingBlock, Tag("~thinking")]
    | Annotated[RedactedThinkingBlock, Tag("~redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("~tool_use")]
    | Annotated[ToolResultBlock, Tag("~tool_result")]
    | Annotated[Any, refuses(*SERVED_TYPES), Tag("~unserved")],
    Discriminator(block_kind),
]
Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
BLOCKS_BY_ROLE: dict[str, tuple[type[Block], ...]] = {
    "system": (TextBlock,),
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
}


class InputMessage(Strict):
    """One message. The role `system` may come in the midst of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[AnyBlock], Field(fail_fast=True), Tag("~parts")],
        Discriminator(content_kind),
    ]

    @property
    def blocks(self) -> list[Any]:
        """The content as blocks."""
        content: Any = self.content
        return [TextBlock(type="text", text=content)] if isinstance(content, str) else content


def fits_roles(messages: list[InputMessage]) -> list[InputMessage]:
    """Refuses blocks that a message of the role cannot have."""
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            continue
        allowed = BLOCKS_BY_ROLE[message.role]
        for at, block in enumerate(message.content):
            if not isinstance(block, allowed):
                context = {
                    "field": f"{index}.content.{at}.type",
                    "message": f"is '{block.type}', which a message of the role '{message.role}' cannot have",
                }
                raise PydanticCustomError("field", "{message}", context)
    return messages


def not_too_many_blocks(messages: Any) -> Any:
    """Bounds the number of messages, and of the blocks of all of them together, those within results included."""
    if not isinstance(messages, list):
        return messages
    num_blocks = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if type(content) is list else ():
            inner = block.get("content") if isinstance(block, dict) else None
            num_blocks += 1 + (len(inner) if type(inner) is list else 0)
    if max(num_blocks, len(messages)) > MAX_MESSAGES:
        raise PydanticCustomError("too_long", "has more than {limit} messages or blocks", {"limit": MAX_MESSAGES})
    return messages


InputMessages = Annotated[
    list[InputMessage],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(not_too_many_blocks),
    AfterValidator(fits_roles),
]


def texts_of(content: str | list[Any] | None) -> list[str]:
    """The texts of a content that has only text."""
    if content is None:
        return []
    return [content] if isinstance(content, str) else [block.text for block in content]
