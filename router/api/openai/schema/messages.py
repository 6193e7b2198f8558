"""The messages of a conversation: text, what an assistant thought, its calls of tools, and their results."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from slipstream.router.api.openai.schema.fields import Label, Strict, Unserved, exactly, field_error, only
from slipstream.router.api.openai.schema.tools import ONLY_FUNCTIONS

MAX_MESSAGES = 8192  # also the limit for the parts, and for the calls, of all messages together
CalledName = Annotated[str, Field(min_length=1, max_length=256)]  # what a model has written, be it a tool or not
CallIdField = Annotated[str, Field(min_length=1, max_length=512)]


def not_too_many_parts(messages: Any) -> Any:
    """Bounds the number of parts of all messages together, and of calls."""
    if isinstance(messages, list):
        num_parts = num_calls = 0
        for message in messages:
            if isinstance(message, dict):
                content, calls = message.get("content"), message.get("tool_calls")
                num_parts += len(content) if type(content) is list else 0
                num_calls += len(calls) if type(calls) is list else 0
        if max(num_parts, num_calls, len(messages)) > MAX_MESSAGES:
            raise PydanticCustomError("too_long", "has more than {limit} messages or parts", {"limit": MAX_MESSAGES})
    return messages


class TextPart(Strict):
    type: Annotated[Any, exactly("text", kind="content parts of type")]
    text: str


class CalledFunction(Strict):
    """`arguments` are the JSON that the model wrote, which may be broken; or the object that it stands for."""

    name: CalledName
    arguments: (
        Annotated[
            Annotated[str, Tag("~string")] | Annotated[dict[str, Any], Tag("~object")],
            Discriminator(lambda value: "~object" if isinstance(value, dict) else "~string"),
        ]
        | None
    ) = None


class ToolCallFields(Strict):
    """A call as it was in an answer; `index` is left in it by clients that put it together from a stream."""

    id: CallIdField
    type: Annotated[Any, exactly("function", None, kind="tool calls of type", advice=ONLY_FUNCTIONS)] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(Strict):
    """One message of a conversation. `content` is text or a list of text parts, or null if an assistant said
    nothing. The role `function` is OpenAI's older `tool`, and `function_call` its older `tool_calls`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: (
        Annotated[
            Annotated[str, Tag("~string")]
            | Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag("~parts")],
            Discriminator(lambda value: "~string" if isinstance(value, str) else "~parts"),
        ]
        | None
    ) = None
    name: Label | None = None
    tool_call_id: CallIdField | None = None
    tool_calls: Annotated[list[ToolCallFields], Field(fail_fast=True)] | None = None
    function_call: CalledFunction | None = None
    refusal: Annotated[Any, only("")] = None
    audio: Unserved = None
    annotations: list[Any] | None = None  # of what an assistant said, and no part of it
    reasoning: str | None = None
    reasoning_content: str | None = None  # its name in DeepSeek's API and in older vLLM

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatMessage:
        if self.role != "assistant":
            if self.content is None:
                raise field_error("content", "is required")
            if self.tool_calls:
                raise field_error("tool_calls", "is only allowed in a message of the role 'assistant'")
            if self.function_call is not None:
                raise field_error("function_call", "is only allowed in a message of the role 'assistant'")
        elif self.tool_calls and self.function_call is not None:
            raise field_error("function_call", "is only allowed without `tool_calls`")
        if self.role == "tool" and self.tool_call_id is None:
            raise field_error("tool_call_id", "is required in a message of the role 'tool'")
        if self.role == "function" and self.name is None:
            raise field_error("name", "is required in a message of the role 'function'")
        return self
