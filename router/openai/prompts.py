"""Turns the prompt of a request into packed token ids, and checks that they fit the model's context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.router.chat_template import ChatTemplateError, Message
from slipstream.router.control_tokens import ControlTokenError
from slipstream.router.http.errors import HttpError
from slipstream.router.openai.schema import ChatMessage
from slipstream.router.tokenizer import TextTooLongError, Tokenizer

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of the completions endpoint


class Prompts:
    """`max_model_len` returns the longest sequence that a worker takes. While no worker is connected it returns None,
    and then its last value is used, because requests may wait for the next worker."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: Callable[[], int | None]) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._latest_limit: int | None = None

    async def of_chat(self, messages: list[ChatMessage]) -> bytes:
        """The token ids of a conversation. Raises HttpError 400 if the model has no chat template, or one that refuses
        these messages."""
        template = self._tokenizer.chat_template
        if template is None:
            raise HttpError(
                400,
                "This model has no chat template; use /v1/completions.",
                param="messages",
                code="unsupported_parameter",
            )
        plain = [plain_message(message, template.knows_developer_role) for message in messages]
        limit = self._limit()
        try:
            return await self._tokenizer.encode_chat(plain, limit)
        except TextTooLongError as error:
            raise self._too_long(f"at least {error.num_tokens}", 0, limit, "messages") from error
        except (ChatTemplateError, ControlTokenError) as error:
            message = f"The model's chat template refused the messages: {error}"
            raise HttpError(400, message, param="messages", code="invalid_value") from error

    async def of_texts(self, texts: Sequence[str], param: str) -> list[bytes]:
        """The token ids of each text. Raises HttpError 400 if one has no tokens or more than fit the model's
        context."""
        limit = self._limit()
        try:
            id_lists = await self._tokenizer.encode(texts, limit)
        except TextTooLongError as error:
            raise self._too_long(f"at least {error.num_tokens}", 0, limit, param) from error
        if not all(id_lists):
            raise HttpError(400, f"'{param}' is empty.", param=param, code="invalid_value")
        return id_lists

    def room(self, packed_ids: bytes, wanted: int | None, default: int | None, param: str) -> int:
        """How many tokens to generate after a prompt: `wanted`; or else `default`, as far as there is room; or else
        (None) as many as there is room for.

        Raises HttpError 400 if prompt and output exceed the context, 503 while the context is not known.
        """
        limit = self._limit()
        num_prompt_tokens = len(packed_ids) // 4
        room = limit - num_prompt_tokens
        if room < (wanted or 1):
            raise self._too_long(str(num_prompt_tokens), wanted or 0, limit, param)
        return wanted or (room if default is None else min(default, room))

    def _limit(self) -> int:
        limit = self._latest_limit = self._max_model_len() or self._latest_limit
        if limit is None:
            raise HttpError(
                503,
                "No decode worker has connected yet.",
                kind="server_error",
                code="not_ready",
                headers=(("retry-after", "1"),),
            )
        return limit

    @staticmethod
    def _too_long(num_prompt_tokens: str, num_wanted: int, limit: int, param: str) -> HttpError:
        wanted = f" and {num_wanted} tokens of output were asked for" if num_wanted else ""
        return HttpError(
            400,
            f"This model's maximum context length is {limit} tokens. The prompt has {num_prompt_tokens} "
            f"tokens{wanted}, which leaves no room. Please shorten the prompt or ask for less output.",
            param=param,
            code="context_length_exceeded",
        )


def plain_message(message: ChatMessage, knows_developer_role: bool) -> Message:
    """A message as templates expect it: its content as one string, and only the fields that are set. Where a template
    does not know the role `developer`, OpenAI's successor of `system`, it becomes `system`."""
    role: str = message.role
    if role == "developer" and not knows_developer_role:
        role = "system"
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    plain = {"role": role, "content": content or ""}
    for key, value in (("name", message.name), ("tool_call_id", message.tool_call_id)):
        if value is not None:
            plain[key] = value
    return plain
