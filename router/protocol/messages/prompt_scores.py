"""Log-probabilities of prompt tokens, in the packed form in which they go from a worker to the writer of the answer."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

NUMBER_BYTES = 4  # of each packed number, little-endian
MAX_SCORED_TOKENS = 512  # of one message: at most about 90 KB with 20 alternatives


class ScoredToken(NamedTuple):
    """The log-probability of a prompt token behind those before it. `rank` counts the tokens that are as good or
    better: 1 for the best one, as in vLLM. `top` are the best tokens, best first, as (token id, logprob) pairs."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class ScoredTokens(NamedTuple):
    """Neighbouring prompt tokens from token `first` on (0 is the first of the prompt, which has no log-probability),
    with `num_top` best tokens each. `packed` has, one after the other: log-probabilities as float32 `[n]`, ranks as
    int32 `[n]`, ids of the best tokens as int32 `[n, num_top]`, and their log-probabilities as float32
    `[n, num_top]`."""

    first: int
    num_top: int
    packed: bytes

    @staticmethod
    def of(first: int, tokens: Sequence[ScoredToken], num_top: int) -> ScoredTokens:
        """Packs tokens that have `num_top` best tokens each."""
        columns = (
            array("f", [token.logprob for token in tokens]),
            array("i", [token.rank for token in tokens]),
            array("i", [token_id for token in tokens for token_id, _ in token.top]),
            array("f", [logprob for token in tokens for _, logprob in token.top]),
        )
        return ScoredTokens(first, num_top, b"".join([column.tobytes() for column in columns]))

    @property
    def token_bytes(self) -> int:
        """Bytes of each token."""
        return 2 * NUMBER_BYTES * (1 + self.num_top)

    @property
    def num_tokens(self) -> int:
        return len(self.packed) // self.token_bytes

    @property
    def end(self) -> int:
        """The number of the token behind the last one."""
        return self.first + self.num_tokens

    @property
    def flaw(self) -> str:
        """Why no worker can mean this; "" if one can."""
        if self.first < 1 or self.num_top < 0:
            return f"log-probabilities of the prompt from token {self.first} on, with {self.num_top} best tokens"
        if not self.packed or len(self.packed) % self.token_bytes:
            return f"{len(self.packed)} bytes are no log-probabilities with {self.num_top} best tokens each"
        if self.num_top and min(self._columns()[2]) < 0:
            return "the best tokens have an id of no token"
        return ""

    def since(self, first: int) -> ScoredTokens | None:
        """Without the tokens before `first`; None: there are no others."""
        if self.first >= first:
            return self
        if self.end <= first:
            return None
        return ScoredTokens.of(first, [*self.tokens()][first - self.first :], self.num_top)

    def tokens(self) -> Iterator[ScoredToken]:
        """One after the other, as they are read."""
        num_top = self.num_top
        logprobs, ranks, top_ids, top_logprobs = self._columns()
        for at, (logprob, rank) in enumerate(zip(logprobs, ranks, strict=True)):
            begin, end = at * num_top, (at + 1) * num_top
            yield ScoredToken(logprob, rank, tuple(zip(top_ids[begin:end], top_logprobs[begin:end], strict=True)))

    def _columns(self) -> tuple[array[float], array[int], array[int], array[float]]:
        num_tokens = self.num_tokens
        logprobs, ranks, top_ids, top_logprobs = array("f"), array("i"), array("i"), array("f")
        at = 0
        for column, num_numbers in (
            (logprobs, num_tokens),
            (ranks, num_tokens),
            (top_ids, num_tokens * self.num_top),
            (top_logprobs, num_tokens * self.num_top),
        ):
            column.frombytes(self.packed[at : at + num_numbers * NUMBER_BYTES])
            at += num_numbers * NUMBER_BYTES
        return logprobs, ranks, top_ids, top_logprobs
