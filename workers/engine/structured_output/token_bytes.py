"""What each token of a vocabulary adds to the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class TokenBytes:
    """`of[token_id]` are the bytes that the token adds to the text. A special token adds none, nor does an id that only
    pads the vocabulary."""

    def __init__(self, of: Sequence[bytes]) -> None:
        self.of = of
        self._with_byte: dict[int, list[int]] = {}

    @staticmethod
    def read(tokenizer: LLTokenizer, spec: Mapping[str, Any]) -> TokenBytes:
        """`spec` is the tokenizer.json that `tokenizer` was made from. llguidance takes each added token of the form
        `<...>` for a special one; whether it is one, the file says."""
        added = spec.get("added_tokens") or []
        decode, is_special = tokenizer.decode_bytes, tokenizer.is_special_token
        texts = [b"" if is_special(token_id) else decode([token_id]) for token_id in range(tokenizer.vocab_size)]
        for token in added:
            if token["id"] < len(texts):
                texts[token["id"]] = b"" if token.get("special") else token["content"].encode()
        return TokenBytes(texts)

    def with_byte(self, byte: int) -> list[int]:
        """The tokens that have the byte somewhere in their text."""
        found = self._with_byte.get(byte)
        if found is None:
            found = self._with_byte[byte] = [token_id for token_id, text in enumerate(self.of) if byte in text]
        return found
