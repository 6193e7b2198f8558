"""What one engine step computes, in plain values: made by the scheduler, run by every rank of the group.

A step mixes prefill chunks and single decode tokens. All sequences of a step lie one after the other in flat token
arrays:

    token_ids   [ s0 s0 s0 s0 | s1 | s2 s2 | s3 ]      [tokens]
    query_lens  [     4       , 1  ,   2   , 1  ]      [seqs]
    kv_lens     keys each sequence attends to, this step's tokens included      [seqs]

Everything in a `StepPlan` is an int, a bool, a string, bytes or a tuple of those, so that it can be sent to the other
ranks. Page ids travel as packed int32 (`numpy.frombuffer(page_ids, numpy.int32)`): a long sequence has hundreds, they
are needed as an array each step, and packing one is a single memory copy where a tuple costs a Python object a page.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.kv_transfer.ticket import HandoffTicket
from slipstream.router.messages import FinishReason, SamplingParams, TokenLogprob
from slipstream.workers.engine.token_counts import TokenCounts


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """The tokens of one sequence in this step: positions `start .. start + len(token_ids)`."""

    start: int
    token_ids: tuple[int, ...]
    page_ids: bytes  # packed int32; the pages of positions 0 .. end, in order: ceil(end / page_tokens) of them
    samples: bool  # the last position's logits are wanted

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


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
class StepPlan:
    """`sends` must be made known to the transport before the first layer of the step is through."""

    slices: tuple[SequenceSlice, ...]
    sends: tuple[PageSend, ...] = ()
    progress: tuple[SendProgress, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.slices)


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence whose next token is sampled in this step, in the order of the slices that sample. Stays on rank 0.

    `counts` is the sequence's own live object, there only if a penalty is on. `masked_ids` are the tokens that would
    end the sequence before `min_tokens`.
    """

    params: SamplingParams
    position: int  # of the token in the output; with the seed it decides the draw
    counts: TokenCounts | None = None
    masked_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """What the engine tells its worker after a step about one sequence. `stop_token_id`: the token that ended the
    sequence, an end-of-sequence token or one of the request's; it is `token` itself and no part of the text. Where the
    model's scores are no numbers there is no token, and the sequence ends with `error`."""

    request_id: str
    attempt: int
    index: int  # output position of `token`
    token: SampledToken | None
    finish_reason: FinishReason | None
    stop_token_id: int | None
    num_cached_tokens: int
