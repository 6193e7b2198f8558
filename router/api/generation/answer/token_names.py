"""How tokens are named where an answer tells their log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from slipstream.router.text.detokenizer import PieceTable

LOWEST_LOGPROB = -9999.0  # JSON has no infinity; vLLM writes the same


class CompletionLogprob(NamedTuple):
    """The log-probabilities of one token of a completion; `top` is a JSON object. The first token of a prompt has
    none."""

    token: str
    logprob: float | None
    top: orjson.Fragment | None
    offset: int


class LogprobNames:
    """By the bytes of `pieces` or, `by_id`, as `token_id:N`: vLLM's `return_tokens_as_token_ids`."""

    def __init__(self, pieces: PieceTable, by_id: bool = False) -> None:
        self._pieces = pieces
        self._by_id = by_id

    def of(self, token_id: int) -> str:
        """A name that no other bytes have: a part of a character is spelled out, as by OpenAI, and an id without a
        token is named as by vLLM."""
        raw = b"" if self._by_id else self._pieces.bytes_of(token_id)
        try:
            return raw.decode() if raw else f"token_id:{token_id}"
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in raw])

    def bytes_of(self, token_id: int) -> bytes:
        """The exact bytes, for formats with a field for them, or those of the id's name."""
        return f"token_id:{token_id}".encode() if self._by_id else self._pieces.bytes_of(token_id)

    def shown(self, token_id: int) -> str:
        """The text of a token, as good as one token can be shown."""
        return token_name(self.bytes_of(token_id))

    def completion_logprob(
        self, token_id: int, logprob: float, best: Iterable[tuple[int, float]], offset: int
    ) -> CompletionLogprob:
        """The token is always among the best ones, as in OpenAI's API. It is named first: its entry has the name that
        is listed under `tokens`. Another token of the same text gets a name of its own, so that no entry is lost."""
        token, logprob = self.of(token_id), finite(logprob)
        top = {token: logprob}
        for other_id, value in best:
            if other_id != token_id:
                name = self.of(other_id)
                top[name if name not in top else f"token_id:{other_id}"] = finite(value)
        top = dict(sorted(top.items(), key=lambda item: -item[1]))
        return CompletionLogprob(token, logprob, orjson.Fragment(orjson.dumps(top)), offset)


def token_name(raw: bytes) -> str:
    """A token as text. Where the format has a field for them, the exact bytes are sent as well."""
    return raw.decode("utf-8", "replace")


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
