"""Tokenises text with the tokenizer of a model directory in Hugging Face layout, without importing `transformers`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from slipstream.router.config.router_config import ContentFormat
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.text.added_tokens import add_missing, named_tokens
from slipstream.router.text.control_tokens import ControlTokens, DisguisedMessages
from slipstream.router.text.detokenizer import PieceTable
from slipstream.router.text.encoding import encode_unlocked
from slipstream.router.text.template.chat_template import ChatTemplate, ChatTemplateError, Message
from slipstream.router.text.template.content_form import ALL_TEXT, ContentForms
from slipstream.router.text.template.tool_forms import NO_TOOLS, ToolForms
from slipstream.router.text.tokenizer_files import TokenizerFiles, load_tokenizer
from slipstream.router.text.unknown_tokens import UnknownTokenError, unknown_tokens
from slipstream.router.text.word_cache import WordCache

# Up to so many characters or tokens are processed on the event loop, which takes about half a millisecond. More would
# hold up other streams; for less, waiting for a thread would take longer than the work. `CACHED_SIZE` is the limit for
# texts whose words are all looked up.
INLINE_SIZE = 2048
CACHED_SIZE = 8192
NO_VARIABLES: Mapping[str, Any] = {}
TRIAL_CHAT: Message = {"role": "user", "content": "Hello"}
VARIABLES, TOOLS, CONTINUED = "", "tools", "continued"  # under which they lie behind the messages
TAIL_TOKENS = 32  # of a prompt: more than what a template writes about reasoning at its end
MESSAGE_SIZE = 16  # what rendering a message costs besides its text, in characters

T = TypeVar("T")


class TokenizerError(ValueError):
    """The tokenizer or the chat template of a model directory cannot be used. The text is a sentence that names the
    directory or the file."""


class TextTooLongError(ValueError):
    """The text is too long: it has at least `num_tokens` tokens."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"the prompt has at least {num_tokens} tokens")
        self.num_tokens = num_tokens


class RenderedChat(NamedTuple):
    """A prompt as text. `disguised` are the messages that it was made from, if control tokens in them were
    disguised."""

    text: str
    disguised: DisguisedMessages | None


class Tokenizer:
    """`vocab_size` is the model's, which may be padded beyond the tokenizer's; ids below it are valid.

    Short texts are tokenised on the event loop, long ones in `encode_pool`, which the caller owns. Token ids are
    returned packed, in the form in which they are sent to workers.
    """

    def __init__(
        self, files: TokenizerFiles, encode_pool: ThreadPoolExecutor, content_format: ContentFormat = "auto"
    ) -> None:
        self._tokenizer = load_tokenizer(files.tokenizer_json)
        spec = json.loads(files.tokenizer_json)
        add_missing(self._tokenizer, spec, files.config)
        self._pool = encode_pool
        added = spec.get("added_tokens", [])
        named = {name: token.content for name, token in named_tokens(files.config)}
        self.vocab_size = files.vocab_size or self._tokenizer.get_vocab_size()
        self.chat_template = ChatTemplate(files.chat_template, named) if files.chat_template else None
        self.content_forms, self.tool_forms = ALL_TEXT, NO_TOOLS
        template_text = ""
        if self.chat_template is not None:
            self.tool_forms = ToolForms.of(self.chat_template)
            self.content_forms = ContentForms.of(self.chat_template, content_format, self.tool_forms.asked)
            # What it writes is not in its source where it is put together (`'<|' + message.role + '|>'`).
            rendered = self.content_forms.rendered, self.tool_forms.rendered
            template_text = "\0".join((files.chat_template or "", *rendered, *named.values()))
        self.added_tokens: tuple[Mapping[str, Any], ...] = tuple(added)
        self.special_tokens = {token["content"]: int(token["id"]) for token in added if token["special"]}
        self._decoder = spec.get("decoder")
        self.pieces = self.pieces_showing({})
        self._control = ControlTokens(spec, template_text, self._tokenizer)
        self._words = WordCache.for_tokenizer(self._tokenizer, spec)
        vocabulary = self._tokenizer.get_vocab()
        self._chars_per_token = max(map(len, vocabulary), default=1)
        self.unknown_to_model = unknown_tokens(vocabulary, self.vocab_size)

    @classmethod
    def from_directory(
        cls, directory: Path | str, encode_pool: ThreadPoolExecutor, content_format: ContentFormat = "auto"
    ) -> Tokenizer:
        """Raises FileNotFoundError or TokenizerError."""
        try:
            tokenizer = cls(TokenizerFiles.read(Path(directory)), encode_pool, content_format)
            tokenizer.check_chat()
        except ValueError as error:
            reason = str(error)
            raise TokenizerError(reason if str(directory) in reason else f"{directory}: {reason}") from error
        return tokenizer

    def pieces_showing(self, shown: Mapping[str, str], shows_special: bool = False) -> PieceTable:
        """A table of pieces in which special tokens are `shown` as these texts. The others are hidden, unless it
        `shows_special` tokens as they are written."""
        hidden = () if shows_special else self.special_tokens.values()
        pieces = {self.special_tokens[token]: text for token, text in shown.items()}
        return PieceTable(self._tokenizer, self._decoder, hidden, pieces)

    def tail(self, packed_ids: bytes) -> str:
        """The end of a prompt as text, with its control tokens."""
        token_ids = unpack_ids(packed_ids[-4 * TAIL_TOKENS :])
        return b"".join(map(self.pieces.bytes_of, token_ids)).decode("utf-8", "replace")

    async def encode(self, texts: Sequence[str], max_tokens: int, add_special_tokens: bool = True) -> list[bytes]:
        """Encodes raw prompts: control tokens in them count as such, and with `add_special_tokens` each gets a start
        token if the model wants one.

        Raises TextTooLongError, without tokenising, if a prompt certainly has more than `max_tokens` tokens.
        """
        for text in texts:
            self._check_length(text, max_tokens)
        return await self._run(
            sum(map(len, texts)), lambda: [self._encode_raw(text, add_special_tokens) for text in texts]
        )

    async def encode_chat(
        self,
        messages: list[Message],
        max_tokens: int,
        variables: Mapping[str, Any] = NO_VARIABLES,
        tools: list[Mapping[str, Any]] | None = None,
        continued: str = "",
    ) -> bytes:
        """Encodes a conversation with the chat template, which gets the client's `variables` and `tools` as well. The
        text `continued` follows the prompt, as the beginning of the answer.
        Control tokens inside all of these are treated as plain text, so that no client can forge another turn.

        Raises ChatTemplateError, ControlTokenError, TextTooLongError.
        """
        template = self.chat_template
        assert template is not None, "the model has no chat template"
        # Roles and names count too, and so does each message: rendering thousands of empty ones takes time as well.
        size = MESSAGE_SIZE * len(messages) + sum(
            [len(v) if isinstance(v, str) else size_of(v) for message in messages for v in message.values()]
        )
        if tools:
            size += size_of(tools)
        size += len(continued)
        if size > CACHED_SIZE:
            return await self._run(
                size,
                lambda: self._encode_chat(self._render(template, messages, variables, tools, continued), max_tokens),
            )
        rendered = self._render(template, messages, variables, tools, continued)
        if self._words is not None and rendered.disguised is None:
            self._check_length(rendered.text, max_tokens)
            token_ids = self._words.encode(rendered.text)
            if token_ids is not None:
                return token_ids
        return await self._run(size, lambda: self._encode_chat(rendered, max_tokens))

    def check_known(self, packed_ids: bytes) -> None:
        """Raises UnknownTokenError if a prompt has a token that the model does not have."""
        if self.unknown_to_model and (highest := max(unpack_ids(packed_ids), default=0)) >= self.vocab_size:
            raise UnknownTokenError(self.unknown_to_model[highest], highest, self.vocab_size)

    def check_chat(self) -> None:
        """Tries the chat template on a short chat. Raises ValueError if the model does not have what it writes."""
        if self.chat_template is None or not self.unknown_to_model:
            return
        with contextlib.suppress(ChatTemplateError):  # it may ask for other messages
            packed_ids = self._encode_chat(self._render(self.chat_template, [TRIAL_CHAT], NO_VARIABLES), 2**31)
            try:
                self.check_known(packed_ids)
            except UnknownTokenError as error:
                raise ValueError(f"the chat template writes a token that is beyond the model: {error}") from error

    async def decode(self, prompts: Sequence[list[int]], skip_special_tokens: bool = True) -> list[str]:
        """The text of each prompt, as a rule without control tokens."""

        def decode_all() -> list[str]:
            return list(self._tokenizer.decode_batch(prompts, skip_special_tokens=skip_special_tokens))

        return await self._run(sum(map(len, prompts)), decode_all)

    async def names_of(self, token_ids: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary spells them; empty for ids that only pad it."""
        name_of = self._tokenizer.id_to_token
        return await self._run(len(token_ids), lambda: [name_of(token_id) or "" for token_id in token_ids])

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        """Does work on `size` characters or tokens in all, in the pool if it would take long."""
        if size <= INLINE_SIZE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _encode_raw(self, text: str, add_special_tokens: bool) -> bytes:
        # The start token comes from tokenizer.json's post-processor alone: like transformers 5, which does not look
        # at `add_bos_token` of tokenizer_config.json where there is a tokenizer.json.
        return encode_unlocked(self._tokenizer, text, add_special_tokens=add_special_tokens)

    def _render(
        self,
        template: ChatTemplate,
        messages: list[Message],
        variables: Mapping[str, Any],
        tools: list[Mapping[str, Any]] | None = None,
        continued: str = "",
    ) -> RenderedChat:
        # What the client gives besides messages. It has no role: a variable of that name makes it no assistant's.
        besides: Message = {VARIABLES: dict(variables)} if variables else {}
        if tools:
            besides[TOOLS] = tools
        if continued:
            besides[CONTINUED] = continued
        both = [*messages, besides] if besides else messages
        has_pieces = self._control.has_pieces(both)
        disguised = self._control.disguise(both, has_pieces)
        shown = both if disguised is None else disguised.messages
        text = render_all(template, shown, bool(besides))
        if has_pieces:
            broken = render_all(template, self._control.composed.broken(shown), bool(besides))
            self._control.check_composed(text, broken, disguised)
        return RenderedChat(text, disguised)

    def _encode_chat(self, rendered: RenderedChat, max_tokens: int) -> bytes:
        self._check_length(rendered.text, max_tokens)
        if rendered.disguised is None:
            return encode_unlocked(self._tokenizer, rendered.text, add_special_tokens=False)
        return self._control.encode(rendered.text, rendered.disguised)

    def _check_length(self, text: str, max_tokens: int) -> None:
        num_tokens = len(text) // self._chars_per_token
        if num_tokens > max_tokens:
            raise TextTooLongError(num_tokens)


def render_all(template: ChatTemplate, messages: list[Message], has_besides: bool) -> str:
    """The prompt; what the client gives besides messages is in the last of them."""
    if not has_besides:
        return template.render(messages)
    besides = messages[-1]
    prompt = template.render(messages[:-1], besides.get(VARIABLES), tools=besides.get(TOOLS))
    continued: str = besides.get(CONTINUED, "")
    return prompt + continued


def size_of(value: Any) -> int:
    """The length of a value of a message, and what rendering its parts costs besides, in characters."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum([MESSAGE_SIZE + size_of(item) for item in value])
    if isinstance(value, Mapping):
        return sum([len(key) + size_of(item) for key, item in value.items()])
    return MESSAGE_SIZE
