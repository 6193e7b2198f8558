"""Turns the prompt of a request into packed token ids, and checks that they fit the model's context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.router.api.generation.answer.failures import as_http_error
from slipstream.router.api.generation.tool_history import has_tools, turns_of
from slipstream.router.api.openai.schema.messages import ChatMessage
from slipstream.router.api.openai.schema.tools import Tool
from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.http.http_error import HttpError, RequestError
from slipstream.router.protocol.generation import Figure, GenerationError
from slipstream.router.text.control_tokens import ControlTokenError
from slipstream.router.text.template.chat_template import ChatTemplateError, Message
from slipstream.router.text.template.content_form import ALL_TEXT, ContentForms
from slipstream.router.text.template.tool_forms import JsonObject
from slipstream.router.text.tokenizer import TextTooLongError, Tokenizer, size_of
from slipstream.router.text.unknown_tokens import UnknownTokenError

MAX_TOOLS_SIZE = 1 << 20  # characters of all definitions together
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of the completions endpoint


class PromptReader:
    """The `limit` that its methods take is that of a whole sequence: prompt and output."""

    __slots__ = ("_tokenizer",)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def of_chat(
        self,
        messages: list[ChatMessage],
        limit: int,
        variables: Mapping[str, Any],
        tools: Sequence[Tool] = (),
        outputs: ModelOutputs | None = None,
        continued: str = "",
        tenant: str = "",
    ) -> bytes:
        """The token ids of a conversation. `variables` are the client's for the chat template; `outputs` say how the
        model takes `tools`; `continued` is how the answer begins; what is remembered of a long one is kept for the
        `tenant`. Raises HttpError 400 if the model has no chat template, or one that refuses these messages."""
        template = self._tokenizer.chat_template
        if template is None:
            raise HttpError(
                400,
                "This model has no chat template; use /v1/completions.",
                param="messages",
                code="unsupported_parameter",
            )
        knows_developer, reasoning_field = template.knows_developer_role, template.reasoning_field
        forms = self._tokenizer.content_forms
        shown_tools = None
        if tools or has_tools(messages):
            plain, shown_tools = self._with_tools(messages, tools, outputs)
        else:
            plain = [plain_message(message, knows_developer, reasoning_field, forms) for message in messages]
        try:
            packed_ids = await self._tokenizer.encode_chat(plain, limit, variables, shown_tools, continued, tenant)
            self._tokenizer.check_known(packed_ids)
            return packed_ids
        except TextTooLongError as error:
            raise too_long(error.num_tokens, 0, limit, "messages", is_at_least=True) from error
        except (ChatTemplateError, ControlTokenError) as error:
            message = f"The model's chat template refused the messages: {error}"
            raise HttpError(400, message, param="messages", code="invalid_value") from error
        except UnknownTokenError as error:  # control tokens in messages are text, so only the template writes them
            message = f"The model's chat template writes a token that is beyond the model: {error}."
            raise HttpError(500, message, kind="server_error", code="token_beyond_model") from error

    def _with_tools(
        self, messages: list[ChatMessage], tools: Sequence[Tool], outputs: ModelOutputs | None
    ) -> tuple[list[Message], list[JsonObject] | None]:
        """The messages and the tools as the template takes them. Raises HttpError 400 for calls and results that do not
        fit together, and for tools that are too large."""
        objects = [tool.as_json() for tool in tools]
        if (size := size_of(objects)) > MAX_TOOLS_SIZE:
            message = f"'tools' has {size} characters; there may be {MAX_TOOLS_SIZE}."
            raise HttpError(400, message, param="tools", code="invalid_value")
        tokenizer, template = self._tokenizer, self._tokenizer.chat_template
        assert template is not None
        tool_forms = tokenizer.tool_forms if outputs is None else outputs.tool_forms
        example = outputs.call_example if outputs is not None else ""
        turns, shown = tool_forms.conversation(turns_of(messages), objects, example)
        if not template.knows_developer_role:
            turns = [turn._replace(role="system") if turn.role == "developer" else turn for turn in turns]
        forms = tokenizer.content_forms
        return [tool_forms.message(turn, forms, template.reasoning_field) for turn in turns], shown

    async def of_texts(self, texts: Sequence[str], limit: int, param: str) -> list[bytes]:
        """The token ids of each text. Raises HttpError 400 if one has no tokens, more than fit the model's
        context, or a token that the model does not have."""
        id_lists = await self._encode(texts, limit, param, adds_start=True)
        if not all(id_lists):
            raise HttpError(400, f"'{param}' is empty.", param=param, code="invalid_value")
        try:
            for packed_ids in id_lists:
                self._tokenizer.check_known(packed_ids)
        except UnknownTokenError as error:
            raise HttpError(400, f"In '{param}', {error}.", param=param, code="invalid_value") from error
        return id_lists

    async def of_any_text(self, text: str, limit: int, adds_start: bool) -> bytes:
        """The token ids of a text that is not to be generated from; it may be empty. Raises HttpError 400 if they are
        certainly more than fit the model's context."""
        return (await self._encode([text], limit, "prompt", adds_start))[0]

    async def _encode(self, texts: Sequence[str], limit: int, param: str, adds_start: bool) -> list[bytes]:
        try:
            return await self._tokenizer.encode(texts, limit, adds_start)
        except TextTooLongError as error:
            raise too_long(error.num_tokens, 0, limit, param, is_at_least=True) from error


def room(
    packed_ids: bytes, limit: int, wanted: int | None, default: int | None, param: str, clamps: bool = False
) -> int:
    """How many tokens to generate after a prompt: `wanted`; or else `default`, as far as there is room; or else (None)
    as many as there is room for. Raises HttpError 400 if there is no room for a single one, or unless this `clamps`,
    for `wanted`."""
    num_prompt_tokens = len(packed_ids) // 4
    most = limit - num_prompt_tokens
    if most < (1 if clamps else wanted or 1):
        raise too_long(num_prompt_tokens, wanted or 0, limit, param, counts_output=not clamps)
    if wanted is not None:
        return min(wanted, most)
    return most if default is None else min(default, most)


def too_long(
    num_prompt_tokens: int,
    num_wanted: int,
    limit: int,
    param: str,
    *,
    is_at_least: bool = False,
    counts_output: bool = False,
) -> RequestError:
    """`counts_output`: the output that was asked for is part of what does not fit, and less of it may."""
    at_least = "at least " if is_at_least else ""
    wanted, advice = "", "Please shorten the prompt"
    if counts_output and num_wanted:
        wanted = f" and the output asked for has {tokens(num_wanted)}"
        advice += " or ask for less output"
    message = (
        f"this model's maximum context length is {tokens(limit)}. The prompt has {at_least}{tokens(num_prompt_tokens)}"
        f"{wanted}, which leaves no room. {advice}"
    )
    figures = (
        Figure("num_prompt_tokens", num_prompt_tokens),
        Figure("num_wanted_tokens", num_wanted),
        Figure("max_model_len", limit),
    )
    return as_http_error(GenerationError("prompt_too_long", message, figures=figures), param)


def tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def plain_message(
    message: ChatMessage,
    knows_developer_role: bool,
    reasoning_field: str | None = None,
    forms: ContentForms = ALL_TEXT,
) -> Message:
    """A message as templates expect it: its content in the form that they take, and only the fields that are set. Where
    a template does not know the role `developer`, OpenAI's successor of `system`, it becomes `system`. What an
    assistant thought goes into `reasoning_field`, if the template looks at one."""
    role: str = message.role
    if role == "developer" and not knows_developer_role:
        role = "system"
    content = message.content
    form = forms.of_role(role)
    if not form.takes_text or not isinstance(content, str):
        parts = [part.text for part in content] if isinstance(content, list) else content
        plain: Message = {"role": role, "content": form.of(parts)}
    else:
        plain = {"role": role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    reasoning = message.reasoning or message.reasoning_content
    if reasoning and reasoning_field is not None:
        plain[reasoning_field] = reasoning
    return plain
