"""What one engine step computes, in plain values: made by the scheduler, run by every rank of the group.

A step mixes prefill chunks and single decode tokens. All sequences of a step lie one after the other in flat token
arrays:

    token_ids   [ s0 s0 s0 s0 | s1 | s2 s2 | s3 ]      [tokens]
    query_lens  [     4       , 1  ,   2   , 1  ]      [seqs]
    kv_lens     keys each sequence attends to, this step's tokens included      [seqs]
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.router.messages import FinishReason, SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """The tokens of one sequence in this step: positions `start .. start + len(token_ids)`."""

    slot: int  # stable small number of the sequence while it runs, < max_num_seqs
    start: int
    token_ids: tuple[int, ...]
    page_ids: tuple[int, ...]  # pages of positions 0 .. end, in order
    samples: bool  # the last position's logits are wanted

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SendProgress:
    """After this step, the first `num_pages` pages of the sequence that `transfer_id` sends are complete."""

    transfer_id: int
    destination_epoch: int
    destination: str
    num_pages: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: int
    slices: tuple[SequenceSlice, ...]
    progress: tuple[SendProgress, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.slices)


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence whose next token is sampled in this step. Stays on rank 0."""

    slot: int
    params: SamplingParams
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]  # position of the draw = len(output_ids)


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """What the engine tells its worker after a step about one sequence."""

    request_id: str
    attempt: int
    index: int  # output position of `token`
    token: SampledToken
    finish_reason: FinishReason | None
    stop_token_id: int | None
    num_cached_tokens: int
