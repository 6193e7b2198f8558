"""Tokenises the texts of an endpoint, single ones and pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.router.text.added_tokens import named_tokens
from slipstream.router.text.template.chat_template import ChatTemplate
from slipstream.router.text.tokenizer_files import TokenizerFiles, load_tokenizer

INLINE_CHARS = 2048  # are tokenised on the event loop, which takes less time than to wait for a thread
PART_CHARS = 1 << 17  # are tokenised at once; the library takes some 400 bytes for each token until it is done
LEAST_CHARS = 64  # that one token is taken to stand for: white space and long unknown words may be no more than one
MAX_STATED = 1 << 20  # a larger `model_max_length` stands for none
Text = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """`type_ids` are 1 for the second text of a pair, where the tokenizer says so."""

    ids: list[int]
    type_ids: list[int]

    def cut(self, num_tokens: int) -> TokenRow:
        """The first tokens, and the last one, which ends a text."""
        if len(self.ids) <= num_tokens:
            return self
        return TokenRow(
            [*self.ids[: num_tokens - 1], self.ids[-1]], [*self.type_ids[: num_tokens - 1], self.type_ids[-1]]
        )


class EndpointTokenizer:
    """Of a folder in Hugging Face layout; reading it takes a while, and is to be done in a thread. `max_tokens` is how
    long texts may be by its files. `pad_id` fills rows up. Raises FileNotFoundError or ValueError."""

    def __init__(self, folder: Path) -> None:
        files = TokenizerFiles.read(folder)
        self._tokenizer = load_tokenizer(files.tokenizer_json)
        stated = files.config.get("model_max_length")
        self.max_tokens = stated if isinstance(stated, int) and 0 < stated < MAX_STATED else None
        self.pad_id = pad_id_of(files.config, self._tokenizer.token_to_id)
        named = {name: token.content for name, token in named_tokens(files.config)}
        self.chat_template = ChatTemplate(files.chat_template, named) if files.chat_template else None
        self._token_chars = max(LEAST_CHARS, *map(len, self._tokenizer.get_vocab()))
        self.vocab_size = files.vocab_size or self._tokenizer.get_vocab_size()

    def max_chars(self, max_tokens: int) -> int:
        """A longer text is taken to have more tokens than that, and need not be tokenised."""
        return max_tokens * self._token_chars

    async def encode(self, texts: Sequence[Text]) -> list[TokenRow]:
        if sum(map(num_chars, texts)) <= INLINE_CHARS:
            return self._encode(texts)
        return await asyncio.to_thread(self._encode, texts)

    def _encode(self, texts: Sequence[Text]) -> list[TokenRow]:
        rows: list[TokenRow] = []
        for part in parts_of(texts):
            # Only the library's batch calls release the interpreter's lock.
            encodings = self._tokenizer.encode_batch_fast(part, add_special_tokens=True)
            rows += [TokenRow(encoding.ids, encoding.type_ids) for encoding in encodings]
        return rows


def num_chars(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def parts_of(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Some at a time, in their order."""
    part: list[Text] = []
    size = 0
    for text in texts:
        part.append(text)
        size += num_chars(text)
        if size >= PART_CHARS:
            yield part
            part, size = [], 0
    if part:
        yield part


def pad_id_of(config: dict[str, Any], id_of: Any) -> int:
    token = config.get("pad_token")
    text = token.get("content") if isinstance(token, dict) else token
    found = id_of(text) if isinstance(text, str) else None
    return found if found is not None else 0


class EndpointTokenizers:
    """Those that were read, by folder."""

    def __init__(self) -> None:
        self._reading: dict[Path, asyncio.Future[EndpointTokenizer]] = {}

    async def of(self, folder: Path) -> EndpointTokenizer:
        """Raises FileNotFoundError or ValueError; a later call tries again."""
        reading = self._reading.get(folder)
        if reading is None:
            reading = self._reading[folder] = asyncio.ensure_future(asyncio.to_thread(EndpointTokenizer, folder))
        try:
            return await asyncio.shield(reading)
        except (OSError, ValueError):
            self._reading.pop(folder, None)
            raise
