"""Tokenises the texts of an endpoint, single ones and pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.router.text.added_tokens import named_tokens
from slipstream.router.text.template.chat_template import ChatTemplate
from slipstream.router.text.tokenizer_files import TokenizerFiles, load_tokenizer

INLINE_CHARS = 2048  # are tokenised on the event loop, which takes less time than to wait for a thread
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
        self.vocab_size = files.vocab_size or self._tokenizer.get_vocab_size()

    async def encode(self, texts: Sequence[Text]) -> list[TokenRow]:
        num_chars = sum([len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts])
        if num_chars <= INLINE_CHARS:
            return self._encode(texts)
        return await asyncio.to_thread(self._encode, texts)

    def _encode(self, texts: Sequence[Text]) -> list[TokenRow]:
        # Only the library's batch calls release the interpreter's lock.
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=True)
        return [TokenRow(encoding.ids, encoding.type_ids) for encoding in encodings]


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
