"""A model of a few multiplications whose tokens depend on every byte of the KV that a real one would read.

The state after token i is h(i) = mix(h(i-1), token i), and a page holds h(i) + a constant of layer and head. The next
token is a function of the sum over all of them and, where it is drawn, of the seed and its position. So a page that is
missing, stale, shared with the wrong prompt, written by somebody else or damaged gives another text, which
`expected_output` knows nothing of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slipstream.router.protocol.messages import FinishReason, SamplingParams, unpack_ids
from slipstream.router.protocol.messages.prompt_scores import ScoredToken
from slipstream.workers.engine.execution.model_runner import PageSink
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, ScoredRows, StepPlan

PAGE_TOKENS, NUM_LAYERS, NUM_HEADS, VOCAB_SIZE = 4, 2, 2, 61
HEAD_BYTES = PAGE_TOKENS * 8
END_ID = 0
ROOT = 0x243F_6A88_85A3_08D3
_MASK = (1 << 64) - 1
_PLACES = np.array([[17, 23], [10_007, 20_011]], np.uint64)  # [layers, heads]
_PLACES_SUM = int(_PLACES.sum())


def mix(state: int, token_id: int) -> int:
    state = ((state ^ (token_id + 1)) * 0x9E37_79B9_7F4A_7C15) & _MASK
    return state ^ (state >> 29)


def pick(kv_sum: int, num_tokens: int, params: SamplingParams, position: int, masked: Sequence[int] = ()) -> int:
    """The next token after `num_tokens`, which are the prompt and `position` tokens of output."""
    draw = mix(kv_sum, num_tokens)
    if params.temperature > 0:
        draw = mix(draw ^ params.seed, position)
    token_id = (draw >> 20) % VOCAB_SIZE
    while token_id in masked:
        token_id += 1
    return token_id


def expected_output(
    prompt: Sequence[int], params: SamplingParams, max_model_len: int
) -> tuple[list[int], FinishReason]:
    """What an undisturbed engine says."""
    state, total, num_tokens = ROOT, 0, 0
    for token_id in prompt:
        state = mix(state, token_id)
        total += state
        num_tokens += 1
    output: list[int] = []
    if not params.max_tokens:
        return output, "length"
    max_tokens = min(params.max_tokens, max_model_len - len(prompt))
    while True:
        masked = (END_ID,) if len(output) < params.min_tokens else ()
        kv_sum = (NUM_LAYERS * NUM_HEADS * total + num_tokens * _PLACES_SUM) & _MASK
        token_id = pick(kv_sum, num_tokens, params, len(output), masked)
        output.append(token_id)
        if token_id == END_ID and not params.ignore_eos:
            return output, "stop"
        if len(output) >= max_tokens:
            return output, "length"
        state = mix(state, token_id)
        total += state
        num_tokens += 1


def toy_score(state: int, token_id: int, num_top: int) -> ScoredToken:
    """The log-probability of a token behind the one with this state."""
    draw = mix(state, token_id)
    logprob = -0.25 * (1 + draw % 64)
    return ScoredToken(logprob, 1 + draw % 7, tuple(((draw + at) % VOCAB_SIZE, -0.5 * at) for at in range(num_top)))


def expected_scores(prompt: Sequence[int], num_top: int) -> list[ScoredToken]:
    """The log-probabilities of a prompt that an undisturbed engine tells."""
    state, scores = ROOT, []
    for token_id, following in pairwise(prompt):
        state = mix(state, token_id)
        scores.append(toy_score(state, following, num_top))
    return scores


def scored_rows(scores: Sequence[ScoredToken]) -> ScoredRows:
    best = np.array([[*pairs] for pairs in (one.top for one in scores)], np.float32).reshape(len(scores), -1, 2)
    return ScoredRows(
        np.array([one.logprob for one in scores], np.float32),
        np.array([one.rank for one in scores], np.int32),
        best[:, :, 0].astype(np.int32),
        np.ascontiguousarray(best[:, :, 1]),
    )


class Pools:
    """The KV of a group: one array a rank, `[layers, pages, heads of the rank, page_tokens]` of states."""

    def __init__(self, num_pages: int, tp: int) -> None:
        heads = NUM_HEADS // tp
        self.ranks = [np.zeros((NUM_LAYERS, num_pages, heads, PAGE_TOKENS), np.uint64) for _ in range(tp)]
        self._places = [_PLACES[:, rank * heads : (rank + 1) * heads] for rank in range(tp)]

    def state_at(self, page: int, offset: int) -> int:
        return (int(self.ranks[0][0, page, 0, offset]) - int(_PLACES[0, 0])) & _MASK

    def write(self, pages: NDArray[np.int32], offsets: NDArray[np.int32], states: NDArray[np.uint64]) -> None:
        for pool, places in zip(self.ranks, self._places, strict=True):
            pool[:, pages, :, offsets] = states[:, None, None] + places

    def sum(self, pages: NDArray[np.int32], num_tokens: int) -> int:
        total = 0
        for pool in self.ranks:
            by_position = pool[:, pages].sum(axis=(0, 2), dtype=np.uint64).ravel()
            total += int(by_position[:num_tokens].sum(dtype=np.uint64))
        return total & _MASK


class ToyRunner:
    """Runs step plans over `pools`. `sinks` are told on each rank what can be sent; `sick` says whether a row gives no
    token, `may_write` sees the pages of each step before they are written."""

    def __init__(
        self,
        pools: Pools,
        sinks: Sequence[PageSink],
        sick: Callable[[], bool],
        may_write: Callable[[NDArray[np.int32]], None],
    ) -> None:
        self._pools = pools
        self._sinks = sinks
        self._sick = sick
        self._may_write = may_write

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        arrays = plan.arrays
        if plan.sends:
            for sink in self._sinks:
                sink.begin_sends(plan.sends)
        pages, offsets = np.divmod(arrays.slots, PAGE_TOKENS)
        self._may_write(pages)
        states = self._states(plan)
        self._pools.write(pages, offsets, states)
        if plan.progress:
            for layer in range(NUM_LAYERS):
                for sink in self._sinks:
                    sink.layer_done(layer, plan.progress)
        sampled = self._sample(plan, sampling)
        return replace(sampled, prompt_scores=self._scored(plan, states)) if plan.prompt_rows else sampled

    @staticmethod
    def _scored(plan: StepPlan, states: NDArray[np.uint64]) -> tuple[ScoredRows, ...]:
        scored = []
        for rows in plan.prompt_rows:
            next_ids = unpack_ids(rows.next_ids)
            of_rows = states[rows.first_row : rows.first_row + len(next_ids)].tolist()
            pairs = zip(of_rows, next_ids, strict=True)
            scored.append(scored_rows([toy_score(state, token_id, rows.num_top) for state, token_id in pairs]))
        return tuple(scored)

    def _states(self, plan: StepPlan) -> NDArray[np.uint64]:
        arrays = plan.arrays
        starts, table = arrays.query_starts.tolist(), arrays.page_table
        positions, token_ids = arrays.positions, arrays.token_ids.tolist()
        states: list[int] = []
        for row in range(arrays.num_seqs):
            first = int(positions[starts[row]])
            before, offset = divmod(first - 1, PAGE_TOKENS)
            state = self._pools.state_at(int(table[row, before]), offset) if first else ROOT
            for token_id in token_ids[starts[row] : starts[row + 1]]:
                state = mix(state, token_id)
                states.append(state)
        return np.array(states, np.uint64)

    def _sample(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        arrays = plan.arrays
        row_of_last = {end - 1: row for row, end in enumerate(arrays.query_starts.tolist()[1:])}
        token_ids: list[int | None] = []
        for at, sample_row in enumerate(arrays.sample_rows.tolist()):
            row = row_of_last[sample_row]
            num_tokens = int(arrays.kv_lens[row])
            pages = arrays.page_table[row, : -(-num_tokens // PAGE_TOKENS)]
            kv_sum = self._pools.sum(pages, num_tokens)
            if self._sick():
                token_ids.append(None)
            elif plan.greedy:
                token_ids.append(pick(kv_sum, num_tokens, _GREEDY, 0))
            else:
                wanted = sampling[at]
                token_ids.append(pick(kv_sum, num_tokens, wanted.params, wanted.position, wanted.masked_ids))
        return SampledTokens(token_ids)


_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
