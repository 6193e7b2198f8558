"""The text that a model gets of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from slipstream.router.api.openai.schema.messages import ChatMessage
from slipstream.router.api.tensors.models.endpoint_errors import invalid, misconfigured
from slipstream.router.api.tensors.text.endpoint_tokenizer import EndpointTokenizer
from slipstream.router.text.template.chat_template import ChatTemplateError

INLINE_MESSAGES = 64  # are rendered on the event loop


async def prompt_of(
    messages: Sequence[ChatMessage],
    form: Literal["last", "json", "template"],
    tokenizer: EndpointTokenizer | None,
    endpoint: str,
    variables: Mapping[str, Any],
) -> str:
    """`last` is what the user has said last, `json` are all messages, `template` is what the tokenizer's chat template
    makes of them, with these variables. Raises HttpError."""
    if form == "last":
        asked = [message for message in messages if message.role == "user"]
        if not asked:
            raise invalid("messages", "has no message of the role 'user'")
        return text_of(asked[-1])
    plain: list[dict[str, Any]] = [{"role": message.role, "content": text_of(message)} for message in messages]
    if form == "json":
        return orjson.dumps(plain).decode()
    template = tokenizer.chat_template if tokenizer is not None else None
    if template is None:
        raise misconfigured(endpoint, "prompt is template, and its tokenizer has no chat template")
    try:
        if len(plain) <= INLINE_MESSAGES:
            return template.render(plain, variables)
        return await asyncio.to_thread(template.render, plain, variables)
    except ChatTemplateError as error:
        raise invalid("messages", f"were refused by the chat template: {error}") from error


def system_text(messages: Sequence[ChatMessage]) -> str:
    return "\n".join([text_of(message) for message in messages if message.role in ("system", "developer")])


def text_of(message: ChatMessage) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return "".join([part.text for part in content])
