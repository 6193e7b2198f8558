"""Tokenises text with the tokenizer of a model directory in Hugging Face layout, without importing `transformers`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from slipstream.router.config.router_config import ContentFormat
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.text.added_tokens import add_missing, named_tokens
from slipstream.router.text.control_tokens import ControlTokens, DisguisedMessages
from slipstream.router.text.conversations import TOOLS, VARIABLES, Conversation, Conversations, ResumedPrompt
from slipstream.router.text.detokenizer import PieceTable
from slipstream.router.text.encoding import EncodePool, encode_unlocked
from slipstream.router.text.memory.inline_pace import InlinePace
from slipstream.router.text.memory.prompt_memory import PromptMemory
from slipstream.router.text.memory.sections import Sections
from slipstream.router.text.template.chat_template import ChatTemplate, ChatTemplateError, Message
from slipstream.router.text.template.content_form import ALL_TEXT, ContentForms
from slipstream.router.text.template.loop_view import NotResumableError
from slipstream.router.text.template.tool_forms import NO_TOOLS, ToolForms
from slipstream.router.text.tokenizer_files import TokenizerFiles, load_tokenizer
from slipstream.router.text.unknown_tokens import UnknownTokenError, unknown_tokens
from slipstream.router.text.word_cache import WordCache

# Up to so many characters or tokens are processed on the event loop, which takes about half a millisecond. More would
# hold up other streams; for less, waiting for a thread would take longer than the work. `CACHED_SIZE` is the limit for
# texts whose words are all looked up.
INLINE_SIZE = 2048
CACHED_SIZE = 8192
NEW_SIZE = 16384  # of the new sections of a long prompt, whose words are looked up
NO_VARIABLES: Mapping[str, Any] = {}
TRIAL_CHAT: Message = {"role": "user", "content": "Hello"}
CONTINUED = "continued"  # under which it lies behind the messages
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
        self._memory = encode_pool.memory if isinstance(encode_pool, EncodePool) else PromptMemory()
        self._sections = Sections(self._memory, spec, self._words is not None and self._words.cuts_at_spaces)
        self._pace = InlinePace()
        self._identity = object()  # what is remembered for this tokenizer
        self._conversations: Conversations | None = None
        if self.chat_template is not None and self._sections.may_be_cut:
            self._conversations = Conversations(self.chat_template, self._control, self._memory, self._identity)
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
            self._check_length(len(text), max_tokens)
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
        tenant: str = "",
    ) -> bytes:
        """Encodes a conversation with the chat template, which gets the client's `variables` and `tools` as well. The
        text `continued` follows the prompt, as the beginning of the answer. Control tokens inside all of these are
        treated as plain text, so that no client can forge another turn. What is remembered of long ones is kept for the
        `tenant` alone.

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
            render = partial(self._render, template, messages, variables, tools, continued)
            if not continued:
                known = await self._encode_conversation(messages, variables, tools, size, max_tokens, tenant)
                if known is not None:
                    return known
            rendered = await self._timed(len(messages), size, render)
            return await self._encode_long(rendered, max_tokens, tenant)
        rendered = self._render(template, messages, variables, tools, continued)
        if self._words is not None and rendered.disguised is None:
            self._check_length(len(rendered.text), max_tokens)
            token_ids = self._words.encode(rendered.text)
            if token_ids is not None:
                return token_ids
        return await self._run(size, lambda: self._encode_chat(rendered, max_tokens))

    async def _encode_conversation(
        self,
        messages: list[Message],
        variables: Mapping[str, Any],
        tools: list[Mapping[str, Any]] | None,
        size: int,
        max_tokens: int,
        tenant: str,
    ) -> bytes | None:
        """The ids of a long prompt, of whose beginning nothing is done again that is known. None if it has to be done
        in the plain way."""
        conversations = self._conversations
        if conversations is None or not conversations.is_on:
            return None
        opened = conversations.open(messages, variables, tools or None, tenant)
        prompt = await self._resume_or_begin(conversations, opened, size)
        if prompt is None:
            return None
        self._check_length(prompt.num_chars, max_tokens)
        sections, id_lists = await self._encode_sections(prompt.text, tenant)
        packed_ids = b"".join((prompt.known_ids, *id_lists))
        if prompt.known is not None:
            known, begin = prompt.known, self._sections.last_start(prompt.text, prompt.kept_chars)
            known.tail = prompt.text[begin : prompt.kept_chars]
            known.packed_ids = packed_ids
            known.num_id_bytes += sum(map(len, ids_before(begin, sections, id_lists)))
            conversations.keep(opened, known)
        return packed_ids

    async def _encode_long(self, rendered: RenderedChat, max_tokens: int, tenant: str) -> bytes:
        """The ids of a long prompt, some of whose sections may be known."""
        if rendered.disguised is not None or not self._sections.may_be_cut:
            return await self._run(len(rendered.text), lambda: self._encode_chat(rendered, max_tokens))
        self._check_length(len(rendered.text), max_tokens)
        _, id_lists = await self._encode_sections(rendered.text, tenant)
        return b"".join(id_lists)

    async def _resume_or_begin(
        self, conversations: Conversations, opened: Conversation, size: int
    ) -> ResumedPrompt | None:
        """None if it has to be done in the plain way."""
        if opened.known is not None:
            num_known = len(opened.known.forms)
            num_new = len(opened.messages) - num_known
            with contextlib.suppress(NotResumableError):
                # What is new in it takes as long as it would alone, and the rest little.
                share = size * num_new // len(opened.messages)
                return await self._timed(1 + num_new, share, partial(conversations.resume, opened))

        if not conversations.is_worth_trying():
            return None

        def begin() -> ResumedPrompt | None:
            with contextlib.suppress(NotResumableError):
                return conversations.begin(opened)
            return None

        return await self._timed(len(opened.messages), size, begin)

    async def _timed(self, num_messages: int, size: int, render: Callable[[], T]) -> T:
        """Renders so many messages of this size in all, in the pool if it may take long."""

        def timed() -> T:
            begun_s = time.thread_time()
            rendered = render()
            self._pace.note(num_messages, size, time.thread_time() - begun_s)
            return rendered

        if self._pace.allows(num_messages, size):
            return timed()
        return await asyncio.get_running_loop().run_in_executor(self._pool, timed)

    async def _encode_sections(self, text: str, tenant: str) -> tuple[list[str], list[bytes]]:
        """The sections of a prompt, and the ids of each."""
        owner = self._identity, tenant
        sections = self._sections.of(text)
        known = self._sections.known(owner, sections)
        num_new = sum([len(section) for section, found in zip(sections, known, strict=True) if found is None])
        if self._words is not None and num_new <= NEW_SIZE:
            num_new = self._sections.learn(owner, sections, known, self._words.encode)
        if num_new:
            await self._run(num_new, lambda: self._sections.learn(owner, sections, known, self._encode_section))
        return sections, [packed_ids for packed_ids in known if packed_ids is not None]

    def _encode_section(self, text: str) -> bytes:
        return encode_unlocked(self._tokenizer, text, add_special_tokens=False)

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
        self._check_length(len(rendered.text), max_tokens)
        if rendered.disguised is None:
            return encode_unlocked(self._tokenizer, rendered.text, add_special_tokens=False)
        return self._control.encode(rendered.text, rendered.disguised)

    def _check_length(self, num_chars: int, max_tokens: int) -> None:
        num_tokens = num_chars // self._chars_per_token
        if num_tokens > max_tokens:
            raise TextTooLongError(num_tokens)


def ids_before(begin: int, sections: Sequence[str], id_lists: Sequence[bytes]) -> Iterator[bytes]:
    """The ids of the sections before the one that begins there."""
    at = 0
    for section, packed_ids in zip(sections, id_lists, strict=True):
        if at == begin:
            return
        at += len(section)
        yield packed_ids


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
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is dict:
        return sum([len(key) + (len(v) if type(v) is str else size_of(v)) for key, v in value.items()])
    if kind is list:
        return sum([MESSAGE_SIZE + size_of(item) for item in value])
    return (
        sum([len(key) + size_of(item) for key, item in value.items()]) if isinstance(value, Mapping) else MESSAGE_SIZE
    )
