"""What one engine step computes, in plain values: planned on rank 0, and run by every rank of the group.

A step mixes prefill chunks and single decode tokens. All sequences of a step are stored one after the other in flat
token arrays (`StepArrays`), decoding ones first:

    token_ids   [ s0 | s1 | s2 s2 s2 s2 | s3 s3 ]      [tokens]
    query_lens  [ 1  , 1  ,     4       ,   2   ]      [seqs]
    kv_lens     keys each sequence attends to, this step's tokens included      [seqs]
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import FaultKind, SamplingParams, TokenLogprob
from slipstream.workers.engine.plan.token_bans import TokenBans
from slipstream.workers.engine.plan.token_counts import TokenCounts
from slipstream.workers.engine.processors.row_processors import RowProcessors
from slipstream.workers.engine.structured_output.grammar_matcher import SequenceGrammar
from slipstream.workers.models.interface.step_arrays import StepArrays

GREEDY_BELOW = 1e-5  # colder than this is greedy: vLLM's _SAMPLING_EPS


@dataclass(frozen=True, slots=True)
class PageSend:
    """Sending begins with this step: `page_ids` (packed int32) are the pages that the ticket asks for, in order. They
    stay where they are until the sequence is released."""

    ticket: HandoffTicket
    page_ids: bytes


@dataclass(frozen=True, slots=True)
class SendProgress:
    """After this step, the first `num_pages` pages of the sequence that `transfer_id` sends are complete."""

    transfer_id: int
    destination_epoch: int
    destination: str
    num_pages: int


@dataclass(frozen=True, slots=True)
class StateCopy:
    """The pages `source` are copied to `to`, as many, before a step: a sequence's state that is kept for the prefix
    cache, or one from there that a sequence goes on from."""

    source: array[int]
    to: array[int]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of a step, one after the other from `first_row` on, whose scores say how likely the prompt goes on as it
    does: `next_ids` (packed int32) are the tokens behind them. `num_top` best tokens are wanted beside each."""

    first_row: int
    next_ids: bytes
    num_top: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of a step. `state_copies` come first, one by one. `sends` must be passed to the transport before the
    first layer of the step is done. `greedy`: each token is simply the best one, and nothing else is wanted of the
    scores that are sampled from. `prompt_rows` are those of prompts whose log-probabilities are wanted, a sequence
    each. The arrays are valid until the next step."""

    arrays: StepArrays
    greedy: bool = False
    sends: tuple[PageSend, ...] = ()
    progress: tuple[SendProgress, ...] = ()
    state_copies: tuple[StateCopy, ...] = ()
    prompt_rows: tuple[PromptRows, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence whose next token is sampled in this step, in the order of the plan. Stays on rank 0. `grammar` is
    there only if it restricts that token.

    `counts`, `bans` and `processors` are the sequence's own live objects, there only if they have something to do.
    `masked_ids` are the tokens that would end the sequence before `min_tokens`; where the grammar allows nothing else
    they count for nothing.
    """

    params: SamplingParams
    position: int  # of the token in the output; with the seed it decides the draw
    counts: TokenCounts | None = None
    masked_ids: tuple[int, ...] = ()
    grammar: SequenceGrammar | None = None
    bans: TokenBans | None = None
    processors: RowProcessors | None = None


class TokenFailure(NamedTuple):
    """Why there is no next token, on whichever worker: the request leaves none to pick, or one of its logits processors
    has failed."""

    kind: FaultKind
    message: str


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The log-probabilities of the tokens behind some rows, their ranks (1: none is better), and the best tokens."""

    logprobs: NDArray[np.float32]  # [n]
    ranks: NDArray[np.int32]  # [n]
    top_ids: NDArray[np.int32]  # [n, num_top]
    top_logprobs: NDArray[np.float32]  # [n, num_top]


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens of a step, one for each sequence that samples, in the order of the plan; None if its scores leave none
    to pick. `logprobs` is None if no sequence wants any. `failures` say why there is no token, by index, where that
    would be so on any worker. `prompt_scores` are those of the plan's `prompt_rows`."""

    token_ids: Sequence[int | None] = ()
    logprobs: Sequence[TokenLogprob | None] | None = None
    failures: Mapping[int, TokenFailure] | None = None
    prompt_scores: Sequence[ScoredRows] = ()


def is_greedy(params: SamplingParams) -> bool:
    """Whether, where no token is masked, the best token is taken and nothing else is wanted of the scores."""
    return (
        params.temperature < GREEDY_BELOW
        and params.logprobs is None
        and not params.logit_bias
        and not params.presence_penalty
        and not params.frequency_penalty
        and params.repetition_penalty == 1.0
        and not params.restrictions
    )
