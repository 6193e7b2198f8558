"""A request to the Messages API as a chat, which is what is served, and the errors of that in the client's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from slipstream.router.api.anthropic.content_blocks import ThinkingBlock, texts_of
from slipstream.router.api.anthropic.error_form import OVERLOADED, is_overload
from slipstream.router.api.anthropic.limit_headers import anthropic_headers
from slipstream.router.api.anthropic.request_body import MessagesPrompt, MessagesRequest
from slipstream.router.api.anthropic.thinking_signature import carried_by
from slipstream.router.api.anthropic.tool_fields import use_of
from slipstream.router.api.anthropic.turns import InputTurn, turns_of
from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.messages import CalledFunction, ChatMessage, TextPart, ToolCallFields
from slipstream.router.api.openai.schema.serving_fields import ServingFields
from slipstream.router.api.openai.schema.structured_fields import NamedSchema, ResponseFormat
from slipstream.router.api.openai.schema.tools import ToolUse
from slipstream.router.http.http_error import HttpError
from slipstream.router.text.template.chat_template import ChatTemplate

SAME_FIELDS = (
    *("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "user", "chat_template_kwargs"),
    *ServingFields.model_fields,
)
# Claude Code's first block, which some of its versions change with every request, so that no prefix would be cached.
CLIENT_HEADER = "x-anthropic-billing-header:"
FAILED = "Error: "
OTHER_NAMES = (("response_format.json_schema.schema", "output_config.format.schema"),)


class MessagesToolUse(ToolUse):
    """Names the places of schemas as they are in the body of this API."""

    __slots__ = ()

    def place_of(self, index: int) -> str:
        return f"tools.{index}.input_schema"


def chat_of(body: MessagesPrompt) -> ChatRequest:
    """The chat, still without its messages: they depend on the template of the model. The fields have been checked."""
    schema = body.schema_format
    given: dict[str, Any] = {name: getattr(body, name, None) for name in SAME_FIELDS}
    given["reasoning_effort"] = body.output_config.effort if body.output_config is not None else None
    if body.thinking is not None:
        given["enable_thinking"] = body.thinking.type in ("enabled", "adaptive") or follows_results(body)
        given["include_reasoning"] = given["enable_thinking"]
    if schema is not None:
        named = NamedSchema.model_construct(name="output", schema_=schema.schema_)
        given["response_format"] = ResponseFormat.model_construct(type="json_schema", json_schema=named)
    if isinstance(body, MessagesRequest):
        given["stop"] = body.stop_sequences
        given["retention_s"] = body.pinned_s or None
    given = {name: value for name, value in given.items() if value is not None}
    chat = ChatRequest.model_construct(set(given), messages=[], **given)
    use = use_of(body.tools, body.tool_choice)
    chat.__dict__["tool_use"] = None if use is None else MessagesToolUse(*use)  # in place of the cached property
    return chat


def follows_results(body: MessagesPrompt) -> bool:
    """Whether the model is to think between tools, and results of some have come."""
    if body.thinking is None or body.thinking.type != "between_tools":
        return False
    latest = takewhile(lambda message: message.role != "assistant", reversed(body.messages))
    return any(block.type == "tool_result" for message in latest for block in message.blocks)


def with_messages(chat: ChatRequest, body: MessagesPrompt, template: ChatTemplate | None) -> ChatRequest:
    """The chat with the messages of `body`. Raises HttpError 400."""
    turns = turns_of(body.messages, template is not None and template.shows_later_system)
    messages = [*system_messages(body), *(message for turn in turns for message in messages_of(turn))]
    added: dict[str, Any] = {"messages": messages}
    if turns[-1].role == "assistant":
        check_prefill(body, turns[-1], len(messages) - 1)
        if messages[-1].content:
            added["continue_final_message"] = True
        else:
            messages.pop()
    return chat.model_copy(update=added)


def system_messages(body: MessagesPrompt) -> Iterator[ChatMessage]:
    texts = [text for text in texts_of(body.system) if not text.startswith(CLIENT_HEADER)]
    if texts:
        yield text_message("system", texts)


def messages_of(turn: InputTurn) -> Iterator[ChatMessage]:
    """A turn as messages of a chat: results before the other words of the user, who may give both."""
    if turn.role == "assistant":
        yield assistant_message(turn)
        return
    for result in turn.results:
        texts = result.texts
        if result.is_error:
            texts = [f"{FAILED}{texts[0]}", *texts[1:]] if texts else [FAILED.rstrip(": ")]
        yield text_message("tool", texts or [""], tool_call_id=result.tool_use_id)
    if turn.texts:
        yield text_message(turn.role, turn.texts)


def assistant_message(turn: InputTurn) -> ChatMessage:
    """What an assistant has said is one text: the client has it in blocks where calls or thinking came between."""
    thoughts = [thought_of(placed.block) for placed in turn.blocks if isinstance(placed.block, ThinkingBlock)]
    calls = [
        ToolCallFields.model_construct(
            id=call.id,
            type="function",
            function=CalledFunction.model_construct(name=call.name, arguments=call.input),
        )
        for call in turn.calls
    ]
    return ChatMessage.model_construct(
        role="assistant",
        content="".join(turn.texts),
        reasoning="\n".join([thought for thought in thoughts if thought]) or None,
        tool_calls=calls or None,
    )


def thought_of(block: ThinkingBlock) -> str:
    return block.thinking or carried_by(block.signature or "")


def text_message(role: str, texts: Sequence[str], **fields: Any) -> ChatMessage:
    content: Any = texts[0]
    if len(texts) > 1:
        content = [TextPart.model_construct(type="text", text=text) for text in texts]
    return ChatMessage.model_construct(role=role, content=content, **fields)


def check_prefill(body: MessagesPrompt, turn: InputTurn, num_before: int) -> None:
    """Raises HttpError 400 for a last turn of the assistant that cannot be the beginning of the answer."""
    if not num_before:
        raise invalid("messages", "'messages' has only the beginning of an answer; give a message of the 'user', too.")
    text = "".join(turn.texts)
    if text != text.rstrip():
        raise invalid(turn.place, f"'{turn.place}': the final assistant content cannot end with trailing whitespace.")
    if body.schema_format is not None:
        message = f"'{turn.place}': an answer that follows a schema cannot begin with text of the client."
        raise invalid(turn.place, message)


def reword(error: HttpError) -> None:
    """Lets an error speak of the fields that the client has sent, with the status that it has in this API."""
    for theirs, ours in OTHER_NAMES:
        error.message = error.message.replace(theirs, ours)
        error.param = error.param.replace(theirs, ours) if error.param is not None else None
    error.headers = tuple(anthropic_headers(error.headers))
    if error.status == 503 and is_overload(error):
        error.status = OVERLOADED
