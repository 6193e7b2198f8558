"""Turns token ids into text, one token at a time.

A token is a run of bytes and may end in the middle of a character. Instead of decoding a window of tokens over and
over, the detokenizer looks up each token's bytes in a table and keeps only the unfinished end of a character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import tokenizers

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Step = Callable[[str], str | bytes]


class UnsupportedDecoderError(ValueError):
    """The `decoder` in tokenizer.json is of a kind that `PieceTable` cannot reproduce."""


class PieceTable(dict[int, str | bytes]):
    """What each token of a vocabulary contributes to the text, filled in as tokens occur: a string, or bytes if it is
    not a whole number of characters; empty for control tokens.

    Supports the decoders of byte-level BPE (GPT-2, Llama 3, Qwen) and of sentencepiece conversions (Llama 2, Mistral:
    metaspace and byte fallback), and raises UnsupportedDecoderError for any other. A leading space is never stripped,
    because the output continues a prompt. Tokens of `shown` contribute these texts instead.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        decoder: dict[str, Any] | None,
        hidden: Iterable[int],
        shown: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(shown)
        self._tokenizer = tokenizer
        self._steps = compile_steps(decoder)
        self._hidden = frozenset(hidden)
        self._bytes: dict[int, bytes] = {}
        kinds = [decoder["type"]] if decoder and "decoders" not in decoder else []
        kinds += [step["type"] for step in (decoder or {}).get("decoders", [])]
        self.replaces_each_byte = "ByteFallback" in kinds

    def __missing__(self, token_id: int) -> str | bytes:
        raw = b"" if token_id in self._hidden else self.bytes_of(token_id)
        try:
            piece: str | bytes = raw.decode()
        except UnicodeDecodeError:
            piece = raw
        self[token_id] = piece
        return piece

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes; for a control token, the bytes of its name; empty for an id without a token."""
        raw = self._bytes.get(token_id)
        if raw is None:
            piece: str | bytes = self._tokenizer.id_to_token(token_id) or ""
            for step in self._steps:
                if isinstance(piece, str):
                    piece = step(piece)
            raw = self._bytes[token_id] = piece.encode() if isinstance(piece, str) else piece
        return raw


class Detokenizer:
    """The text of one growing output. `add` costs O(1) and never returns half a character."""

    __slots__ = ("_pending", "_pieces")

    def __init__(self, pieces: PieceTable) -> None:
        self._pieces = pieces
        self._pending = b""

    def add(self, token_id: int) -> str:
        """The text that has become certain with `token_id`; may be empty."""
        piece = self._pieces[token_id]
        if isinstance(piece, str):
            if not self._pending or not piece:
                return piece
            return self.finish() + piece
        self._pending += piece
        return self._decode(final=False)

    def finish(self) -> str:
        """The rest of the text at the end of the output: U+FFFD if a character was left unfinished, else nothing."""
        return self._decode(final=True) if self._pending else ""

    def _decode(self, final: bool) -> str:
        text: list[str] = []
        data, self._pending = self._pending, b""
        while data:
            try:
                text.append(data.decode())
                break
            except UnicodeDecodeError as error:
                text.append(data[: error.start].decode())
                if error.reason == "unexpected end of data" and not final:
                    self._pending = data[error.start :]
                    break
                # Like `tokenizers`: byte-level decoders replace each broken sequence, byte fallback replaces each byte.
                num_replaced = error.end - error.start if self._pieces.replaces_each_byte else 1
                text.append(REPLACEMENT * num_replaced)
                data = data[error.end :]
        return "".join(text)


def compile_steps(decoder: dict[str, Any] | None) -> list[Step]:
    """The functions that turn a token's name into its text. Raises UnsupportedDecoderError."""
    if decoder is None:
        raise UnsupportedDecoderError("tokenizer.json has no decoder")
    kind = decoder["type"]
    if kind == "Sequence":
        return [step for part in decoder["decoders"] for step in compile_steps(part)]
    if kind == "ByteLevel":
        return [byte_level_step()]
    if kind == "ByteFallback":
        return [bytes_of_byte_token]
    if kind == "Metaspace":
        metaspace: str = decoder["replacement"]
        return [lambda token: token.replace(metaspace, " ")]
    if kind == "Replace" and "String" in decoder["pattern"]:
        pattern: str = decoder["pattern"]["String"]
        content: str = decoder["content"]
        return [lambda token: token.replace(pattern, content)]
    if kind == "Fuse" or (kind == "Strip" and decoder["content"] == " " and decoder["stop"] == 0):
        return []  # `Fuse` joins tokens; `Strip` only affects the very start of a text, which an output never is
    raise UnsupportedDecoderError(f"tokenizer.json has a decoder of an unsupported kind: {decoder}")


def bytes_of_byte_token(token: str) -> str | bytes:
    """Byte fallback: the token `<0xE2>` stands for that byte, any other token is text."""
    match = BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token


def byte_level_step() -> Step:
    """The inverse of GPT-2's byte alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes
    for U+0100 and up, in order. A token with any other character is plain text (an added token)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    byte_of = {chr(byte): byte for byte in printable}
    for i, byte in enumerate(byte for byte in range(256) if byte not in printable):
        byte_of[chr(0x100 + i)] = byte

    def to_bytes(token: str) -> str | bytes:
        try:
            return bytes([byte_of[character] for character in token])
        except KeyError:
            return token

    return to_bytes
