"""Which steps a new worker times, so that the router knows from the first request on what a long prompt would take.

The steps of requests are not enough for that: prompts of 32 tokens do not show what 4,000 take. No step here costs
much, as nothing that comes before a step's tokens is computed: a long context is whatever lies in the pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from slipstream.router.protocol.messages import StepTime

FEW_TOKENS, MANY_TOKENS = 32, 256
LONG_CONTEXT_TOKENS = 4096
MANY_SEQS = 16
DECODE_CONTEXT_DIVISOR = 4  # many sequences have such a part of the longest context at once
CHUNK_S = 0.1  # about what the largest chunk may take, but for its context


class StepSeconds(Protocol):
    """Says how long a step of so many sequences takes, each with so many tokens after so many others."""

    def __call__(self, num_seqs: int, num_tokens: int, context_tokens: int) -> float: ...


class StepLimits(Protocol):
    """How large a worker's steps can be, as its Hello says."""

    @property
    def max_step_tokens(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def max_slots(self) -> int: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def page_tokens(self) -> int: ...


def step_profile(limits: StepLimits, seconds: StepSeconds) -> Iterator[StepTime]:
    """At most six steps within these limits, the important ones first: of prompts a few tokens, many, and as many with
    a long context (so that what attention adds shows: beside a few, it costs nothing where all weights have to be read
    anyway); of decoding one sequence, some, and some with a longer context."""

    def chunk(num_tokens: int, context_tokens: int) -> StepTime:
        mean_context = context_tokens + num_tokens - num_tokens // 2
        return StepTime(num_tokens, mean_context, 0, 0, seconds(1, num_tokens, context_tokens))

    def decoding(num_seqs: int, context_tokens: int) -> StepTime:
        return StepTime(0, 0, num_seqs, num_seqs * (context_tokens + 1), seconds(num_seqs, 1, context_tokens))

    max_tokens = min(limits.max_step_tokens, limits.max_model_len)
    few_tokens = min(FEW_TOKENS, max_tokens, limits.num_pages * limits.page_tokens)
    short = chunk(few_tokens, 0)
    yield short
    many_tokens = min(max_tokens, MANY_TOKENS, max(few_tokens, int(few_tokens * CHUNK_S / max(short.seconds, 1e-6))))
    if many_tokens > few_tokens:
        yield chunk(many_tokens, 0)
    longest = min(LONG_CONTEXT_TOKENS, limits.max_model_len)
    if longest > 2 * many_tokens:
        yield chunk(many_tokens, longest - many_tokens)
    yield decoding(1, few_tokens - 1)
    room = limits.num_pages // -(-few_tokens // limits.page_tokens)
    num_seqs = min(MANY_SEQS, limits.max_slots, limits.max_step_tokens, room)
    if num_seqs > 1:
        yield decoding(num_seqs, few_tokens - 1)
    long_each = min(longest // DECODE_CONTEXT_DIVISOR, limits.num_pages // num_seqs * limits.page_tokens)
    if long_each > 2 * few_tokens:
        yield decoding(num_seqs, long_each - 1)
