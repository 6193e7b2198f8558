"""Turns text into tokens that give exactly this text again."""

from __future__ import annotations

import re
from functools import cached_property

import tokenizers

from slipstream.router.text.detokenizer import PieceTable


class ExactTokens:
    """`pieces` has all tokens with their text, special ones included."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, pieces: PieceTable) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces

    def encode(self, text: str) -> list[int]:
        """The tokens that the tokenizer makes of a text. Where they give another text (a tokenizer may put a space in
        front of it, or compose characters), the longest tokens that fit, from left to right. Raises ValueError if the
        vocabulary cannot write it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if b"".join(map(self._pieces.bytes_of, ids)) == text.encode():
            return ids
        return self._longest(text.encode(), self._max_bytes)

    def characters(self, text: str) -> list[int]:
        """The tokens of each character by itself; special tokens stay whole. Raises ValueError."""
        ids: list[int] = []
        for part in self._special.split(text):
            whole = self._id_of.get(part.encode()) if self._special.fullmatch(part) else None
            if whole is not None:
                ids.append(whole)
                continue
            for character in part:
                ids += self._longest(character.encode(), self._max_bytes)
        return ids

    def _longest(self, text: bytes, max_bytes: int) -> list[int]:
        ids, start = [], 0
        while start < len(text):
            for end in range(min(start + max_bytes, len(text)), start, -1):
                token_id = self._id_of.get(text[start:end])
                if token_id is not None:
                    break
            else:
                rest = text[start:].decode(errors="replace")
                raise ValueError(f"the vocabulary has no token for {rest[:1]!r}")
            ids.append(token_id)
            start = end
        return ids

    @cached_property
    def _id_of(self) -> dict[bytes, int]:
        """The highest id counts: sentencepiece's tokens of single bytes come before those of characters."""
        of_bytes = {self._pieces.bytes_of(i): i for i in sorted(self._tokenizer.get_vocab().values())}
        of_bytes.pop(b"", None)
        return of_bytes

    @cached_property
    def _max_bytes(self) -> int:
        return max(map(len, self._id_of), default=0)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Matches an added token; never anything if there are none."""
        added = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        longest_first = sorted(added, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
