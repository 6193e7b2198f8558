"""Tokenises text with the tokenizer of a model directory in Hugging Face layout, without importing `transformers`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tokenizers

from slipstream.router.chat_template import ChatTemplate, ChatTemplateError, Message
from slipstream.router.control_tokens import ControlTokens, DisguisedMessages
from slipstream.router.detokenizer import PieceTable
from slipstream.router.encoding import encode_unlocked
from slipstream.router.messages import unpack_ids
from slipstream.router.text.unknown_tokens import UnknownTokenError, unknown_tokens
from slipstream.router.word_cache import WordCache

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Up to so many characters or tokens are processed on the event loop, which takes about half a millisecond. More would
# hold up other streams; for less, waiting for a thread would take longer than the work. `CACHED_SIZE` is the limit for
# texts whose words are all looked up.
INLINE_SIZE = 2048
CACHED_SIZE = 8192
NO_VARIABLES: Mapping[str, Any] = {}
TRIAL_CHAT: Message = {"role": "user", "content": "Hello"}
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


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of a model directory that describe its tokenizer."""

    tokenizer_json: str
    config: dict[str, Any]
    chat_template: str | None
    vocab_size: int | None

    @classmethod
    def read(cls, directory: Path) -> TokenizerFiles:
        """Raises FileNotFoundError or ValueError with a sentence that names the file."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: the router needs a fast tokenizer")
        config = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
        vocab_size = read_json(directory / "config.json").get("vocab_size")
        return cls(path.read_text("utf-8"), config, find_chat_template(directory, config), vocab_size)


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

    def __init__(self, files: TokenizerFiles, encode_pool: ThreadPoolExecutor) -> None:
        self._tokenizer = load_tokenizer(files.tokenizer_json)
        spec = json.loads(files.tokenizer_json)
        self._pool = encode_pool
        self._added = {str(token["content"]): token for token in spec.get("added_tokens", [])}
        named = {name: text for name in NAMED_TOKENS if (text := token_text(files.config.get(name)))}
        self.vocab_size = files.vocab_size or self._tokenizer.get_vocab_size()
        self.chat_template = ChatTemplate(files.chat_template, named) if files.chat_template else None
        hidden = [token["id"] for token in self._added.values() if token["special"]]
        self.pieces = PieceTable(self._tokenizer, spec.get("decoder"), hidden)
        self._control = ControlTokens(spec, files.chat_template or "")
        self._words = WordCache.for_tokenizer(self._tokenizer, spec)
        vocabulary = self._tokenizer.get_vocab()
        self._chars_per_token = max(map(len, vocabulary), default=1)
        self.unknown_to_model = unknown_tokens(vocabulary, self.vocab_size)

    @classmethod
    def from_directory(cls, directory: Path | str, encode_pool: ThreadPoolExecutor) -> Tokenizer:
        """Raises FileNotFoundError or TokenizerError."""
        try:
            tokenizer = cls(TokenizerFiles.read(Path(directory)), encode_pool)
            tokenizer.check_chat()
        except ValueError as error:
            reason = str(error)
            raise TokenizerError(reason if str(directory) in reason else f"{directory}: {reason}") from error
        return tokenizer

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
        self, messages: list[Message], max_tokens: int, variables: Mapping[str, Any] = NO_VARIABLES
    ) -> bytes:
        """Encodes a conversation with the chat template, which gets the client's `variables` as well. Control tokens
        inside messages and variables are treated as plain text, so that nobody can forge somebody else's turn.

        Raises ChatTemplateError, ControlTokenError, TextTooLongError.
        """
        template = self.chat_template
        assert template is not None, "the model has no chat template"
        # Roles and names count too, and so does each message: rendering thousands of empty ones takes time as well.
        size = MESSAGE_SIZE * len(messages) + sum([len(text) for message in messages for text in message.values()])
        if size > CACHED_SIZE:
            return await self._run(
                size, lambda: self._encode_chat(self._render(template, messages, variables), max_tokens)
            )
        rendered = self._render(template, messages, variables)
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

    def _render(self, template: ChatTemplate, messages: list[Message], variables: Mapping[str, Any]) -> RenderedChat:
        if not variables:
            disguised = self._control.disguise(messages)
            return RenderedChat(template.render(messages if disguised is None else disguised.messages), disguised)
        both = [*messages, dict(variables)]
        disguised = self._control.disguise(both)
        *messages, variables = both if disguised is None else disguised.messages
        return RenderedChat(template.render(messages, variables), disguised)

    def _encode_chat(self, rendered: RenderedChat, max_tokens: int) -> bytes:
        self._check_length(rendered.text, max_tokens)
        if rendered.disguised is None:
            return encode_unlocked(self._tokenizer, rendered.text, add_special_tokens=False)
        return self._control.encode(rendered.text, rendered.disguised)

    def _check_length(self, text: str, max_tokens: int) -> None:
        num_tokens = len(text) // self._chars_per_token
        if num_tokens > max_tokens:
            raise TextTooLongError(num_tokens)


def load_tokenizer(tokenizer_json: str) -> tokenizers.Tokenizer:
    """Raises ValueError if `tokenizer_json` is not one."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"tokenizer.json cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if there is no such file. Raises ValueError if it is anything else."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return value


def find_chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """The chat template, from its own file or from tokenizer_config.json (one string, or a list of named ones with a
    default); None if there is none."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = config.get("chat_template") or read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None


def token_text(token: Any) -> str | None:
    """The text of a named token, which is written as a string or as an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
