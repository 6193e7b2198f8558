"""A request as the router gives it to a worker: the prompt's tokens, and how to sample the output's.

These are named tuples, because each is created, checked and sent several times per request: see `protocol.codec`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Literal, NamedTuple

GrammarKind = Literal["json", "regex", "choice", "grammar", "output"]


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32, the form in which they are sent."""
    return array("i", token_ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """The inverse of `pack_ids`. Raises ValueError if the length is not a multiple of four bytes."""
    ids = array("i")
    ids.frombytes(packed)
    return ids.tolist()


class GrammarSpec(NamedTuple):
    """What the output has to conform to. `spec` is a JSON schema, a regular expression, a JSON array of strings, or a
    grammar in the syntax of Lark or GBNF (see `protocol.grammar`). For "output" it says which parts of an output have
    which grammar (see `protocol.phased_grammar`)."""

    kind: GrammarKind
    spec: str


class ProcessorCall(NamedTuple):
    """A logits processor by the name that the workers' configuration gives it, with its keyword arguments as a JSON
    object ("": none)."""

    name: str
    args: str = ""


class SamplingParams(NamedTuple):
    """How to pick the next token. All values are final: the front has filled in defaults and a seed.

    The random draw at output position i is a function of (seed, i) alone, so that a request which moves to another
    worker continues identically. `temperature == 0` is greedy. `top_k == 0` and `top_p == 1` switch the filter off.
    `logprobs` is the number of alternatives to report beside the chosen token (0: only the chosen one), None: off.

    `allowed_token_ids` (packed int32; empty: all) are the only tokens that may be picked, end tokens included. No
    output contains one of the token sequences `bad_words`.

    `prompt_logprobs` is the number of best tokens to report with the log-probability of each prompt token (0: none),
    None: off. With `max_tokens` 0 the request ends with its prompt.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: GrammarSpec | None = None
    allowed_token_ids: bytes = b""
    bad_words: tuple[tuple[int, ...], ...] = ()
    logits_processors: tuple[ProcessorCall, ...] = ()
    prompt_logprobs: int | None = None

    @property
    def restrictions(self) -> tuple[str, ...]:
        """The fields that limit which tokens may be picked, and which this asks for."""
        if not (self.allowed_token_ids or self.bad_words or self.logits_processors):
            return ()
        names = ("allowed_token_ids", "bad_words", "logits_processors")
        return tuple([name for name in names if getattr(self, name)])

    @property
    def beyond_0_1_0(self) -> tuple[str, ...]:
        """The fields that only workers since 0.2 know and which this asks for: without them the answer would be
        another."""
        names = self.restrictions
        if self.prompt_logprobs is not None:
            names = (*names, "prompt_logprobs")
        return names if self.max_tokens else (*names, "max_tokens 0")


class RetentionHint(NamedTuple):
    """What keeping the pages of a request's tokens after its end is worth.

    They are kept before others for `keep_s` seconds from the end on (or from a later `Retain`), 0: as any others. Where
    that is too much, those with the least `value` go first: seconds of prefill that a page saves, by each second that
    it is expected to be kept. Those that a client asks to keep, or that a request waits for (`is_pinned`), go after
    those that the router has guessed. `tenant` bounds them. `continues` is the request, ended before, whose pages this
    one goes on from: they need not be kept any longer for it."""

    keep_s: float
    value: float = 0.0
    tenant: str = ""
    is_pinned: bool = False
    continues: str = ""


class EngineRequest(NamedTuple):
    """One attempt at a request, as a worker sees it. `output_ids` are the tokens that earlier attempts have
    produced. Where log-probabilities of the prompt are wanted, those of the first `num_scored` tokens behind the first
    one are known already."""

    request_id: str
    attempt: int
    prompt_ids: bytes
    output_ids: bytes
    sampling: SamplingParams
    cache_salt: str = ""
    priority: int = 0
    retention: RetentionHint | None = None  # None: its pages are cached as any others
    num_scored: int = 0
