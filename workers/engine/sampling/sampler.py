"""Turns scores into tokens, for all sequences of a step at once.

    raw logits -> grammar's mask
               -> log-probabilities to report
               -> logits processors -> penalties -> logit_bias -> bans, min_tokens mask -> argmax           (greedy)
                                                          -> temperature -> min_p -> top_k -> top_p -> draw

Reported log-probabilities are those of the model itself among the tokens that a grammar allows, before anything on the
lower path (as the OpenAI API and vLLM's default `raw_logprobs` have it). Bans are `allowed_token_ids` and `bad_words`.
Penalties as in vLLM: repetition over prompt and output, presence and frequency over output alone. min_p, top_k and
top_p each narrow what the one before has left, with probabilities that sum to one again in between; a tie at the edge
goes to the lower token id.

The draw of a row is an inverse CDF, in order of token ids, at one uniform number, which is a hash of (seed, position).
It depends on nothing else, so a sequence continues identically in another batch, on another worker, or after
preemption.

A row has no token if its highest score is not a finite number, be it from the model (a NaN or an overflow) or after the
changes (no token is allowed). To draw from such a row would be to make something up. Where processors and bans leave
none, the failure says so, because no other worker would find one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from xxhash import xxh3_64_intdigest

from slipstream.router.protocol.messages import SamplingParams, TokenLogprob
from slipstream.workers.engine.plan.step_plan import GREEDY_BELOW, SampledTokens, SamplingRow, TokenFailure
from slipstream.workers.engine.sampling.grammar_mask import apply_grammar_masks
from slipstream.workers.engine.sampling.restrictions import (
    apply_bans,
    apply_processors,
    has_restrictions,
    nothing_left,
)

NUCLEUS_CANDIDATES = 256  # top_p looks at so many tokens first
WIDENING = 16  # and at so many times more if these do not suffice
MAX_FLAT_DRAW = 2048  # a draw among more weights than this first sums up blocks of them
DRAW_BLOCK = 256
TIE_MARGIN = 16  # candidates beyond top_k, so that a tie at the edge is seen
_DOUBLE_BITS = 52  # one less than a double's mantissa: u * total stays below total in every rounding


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the draw at an output position. xxh3 serves as a counter-based generator: it
    passes SMHasher's avalanche tests, which is what neighbouring seeds and positions need."""
    bits: int = xxh3_64_intdigest(struct.pack("<QQ", seed & 0xFFFF_FFFF_FFFF_FFFF, position))
    return float((bits >> (64 - _DOUBLE_BITS)) * 2.0**-_DOUBLE_BITS)


@dataclass(frozen=True, slots=True)
class _RowDraws:
    """Rows of the batch that draw in the same way."""

    rows: Tensor  # [n] int64
    row_list: tuple[int, ...]
    temperature: Tensor  # [n, 1] float32
    log_min_p: Tensor | None  # [n, 1] float32; None: all off
    top_k: Tensor  # [n, 1] int64; the vocabulary's size where off
    top_p: Tensor  # [n, 1] float64
    num_candidates: int  # to look at first; the vocabulary's size where none is cut off


@dataclass(frozen=True, slots=True)
class _Layout:
    """What follows from the parameters of the rows alone. It is kept from step to step while they stay the same."""

    params: tuple[SamplingParams, ...]
    has_greedy: bool
    uncut: _RowDraws | None  # rows that draw from all tokens or those above min_p
    cut: _RowDraws | None  # rows with top_k or top_p
    bias: tuple[Tensor, Tensor, Tensor] | None  # row, token id, value: [n] each
    logprob_rows: Tensor | None  # [n] int64
    num_top: int


class Sampler:
    """Samples on one device from a vocabulary of `vocab_size` tokens."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._layout = self._lay_out(())

    @torch.inference_mode()
    def best(self, logits: Tensor) -> SampledTokens:
        """The token with the highest score for each row of `logits` [rows, vocab]."""
        return sampled_tokens(logits.argmax(dim=-1), logits.amax(dim=-1).isfinite(), None)

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """One token per row, None if its scores leave none to pick. `logits` is [rows, vocab] in float32, and is
        overwritten."""
        layout = self._layout_of(rows)
        is_sound = logits.amax(dim=-1).isfinite()  # nan is above every number
        apply_grammar_masks(logits, rows)
        raw = self._raw_logprobs(logits, layout)
        failures: dict[int, TokenFailure] | None = None
        is_restricted = has_restrictions(rows)
        had_tokens = logits.amax(dim=-1).isfinite() if is_restricted else is_sound
        if is_restricted:
            failures = apply_processors(logits, rows)
            apply_bans(logits, rows)
        self._penalise(logits, rows)
        if layout.bias is not None:
            row, token_ids, values = layout.bias
            logits.index_put_((row, token_ids), values, accumulate=True)
        self._mask(logits, rows)
        highest = logits.amax(dim=-1, keepdim=True)
        is_sound &= highest[:, 0].isfinite()
        if failures is not None:
            failures = failed_rows(rows, had_tokens, is_sound, failures)
            is_sound[list(failures)] = False
        tokens = self._choose(logits, highest, rows, layout)
        reported = None if raw is None else self._reported(tokens, raw, layout)
        return sampled_tokens(tokens, is_sound, reported, failures)

    def _layout_of(self, rows: Sequence[SamplingRow]) -> _Layout:
        known = self._layout.params
        if len(known) != len(rows) or any(row.params is not params for row, params in zip(rows, known, strict=True)):
            self._layout = self._lay_out(tuple(row.params for row in rows))
        return self._layout

    def _lay_out(self, params: tuple[SamplingParams, ...]) -> _Layout:
        drawn = [i for i, p in enumerate(params) if p.temperature >= GREEDY_BELOW]
        cut = [i for i in drawn if 0 < params[i].top_k < self._vocab_size or params[i].top_p < 1]
        uncut = sorted(set(drawn).difference(cut))
        bias = [(i, token_id, value) for i, p in enumerate(params) for token_id, value in p.logit_bias]
        wanted = [i for i, p in enumerate(params) if p.logprobs is not None]
        return _Layout(
            params=params,
            has_greedy=len(drawn) < len(params),
            uncut=self._draws(uncut, params),
            cut=self._draws(cut, params),
            bias=(
                self._tensor([b[0] for b in bias], torch.int64),
                self._tensor([b[1] for b in bias], torch.int64),
                self._tensor([b[2] for b in bias], torch.float32),
            )
            if bias
            else None,
            logprob_rows=self._tensor(wanted, torch.int64) if wanted else None,
            num_top=min(self._vocab_size, max((params[i].logprobs or 0 for i in wanted), default=0)),
        )

    def _draws(self, rows: list[int], params: Sequence[SamplingParams]) -> _RowDraws | None:
        if not rows:
            return None
        chosen = [params[i] for i in rows]
        top_k = [p.top_k if 0 < p.top_k < self._vocab_size else self._vocab_size for p in chosen]
        widths = [k if k < self._vocab_size else NUCLEUS_CANDIDATES for k in top_k]
        min_p = self._tensor([p.min_p for p in chosen], torch.float32)
        return _RowDraws(
            rows=self._tensor(rows, torch.int64),
            row_list=tuple(rows),
            temperature=self._tensor([p.temperature for p in chosen], torch.float32)[:, None],
            log_min_p=min_p.log()[:, None] if any(p.min_p > 0 for p in chosen) else None,
            top_k=self._tensor(top_k, torch.int64)[:, None],
            top_p=self._tensor([p.top_p for p in chosen], torch.float64)[:, None],
            num_candidates=min(self._vocab_size, max(widths) + TIE_MARGIN),
        )

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _penalise(self, logits: Tensor, rows: Sequence[SamplingRow]) -> None:
        counted = [(i, row.params, row.counts) for i, row in enumerate(rows) if row.counts is not None]
        if not counted:
            return
        sizes = [len(counts.ids) for _, _, counts in counted]

        def spread(values: list[float], dtype: type) -> Tensor:
            return torch.from_numpy(np.repeat(np.array(values, dtype), sizes)).to(self._device)

        row = spread([i for i, _, _ in counted], np.int64)
        token_ids = torch.from_numpy(np.concatenate([counts.ids for _, _, counts in counted])).to(self._device)
        output_counts = torch.from_numpy(np.concatenate([counts.output_counts for _, _, counts in counted]))
        output_counts = output_counts.to(self._device)
        repetition = spread([p.repetition_penalty for _, p, _ in counted], np.float32)
        frequency = spread([p.frequency_penalty for _, p, _ in counted], np.float32)
        presence = spread([p.presence_penalty for _, p, _ in counted], np.float32)
        scores = logits[row, token_ids]
        scores = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores -= frequency * output_counts + presence * (output_counts > 0)
        logits[row, token_ids] = scores

    def _mask(self, logits: Tensor, rows: Sequence[SamplingRow]) -> None:
        masked = [(i, token_id) for i, row in enumerate(rows) if row.grammar is None for token_id in row.masked_ids]
        if masked:
            row = self._tensor([i for i, _ in masked], torch.int64)
            token_ids = self._tensor([token_id for _, token_id in masked], torch.int64)
            logits[row, token_ids] = float("-inf")

    def _choose(self, logits: Tensor, highest: Tensor, rows: Sequence[SamplingRow], layout: _Layout) -> Tensor:
        """Token ids [rows]. `highest` [rows, 1] are the highest of `logits`, which are overwritten."""
        if layout.uncut is None and layout.cut is None:
            return logits.argmax(dim=-1)
        if layout.has_greedy:
            tokens = logits.argmax(dim=-1)
        else:
            tokens = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        if layout.uncut is not None:
            draws = layout.uncut
            weights = _relative_logits(logits, highest, draws).exp_()
            tokens[draws.rows] = _draw(weights, self._uniforms(rows, draws))[:, 0]
        if layout.cut is not None:
            draws = layout.cut
            x = _relative_logits(logits, highest, draws)
            uniforms = self._uniforms(rows, draws)
            tokens[draws.rows] = _draw_cut(x, draws.top_k, draws.top_p, uniforms, draws.num_candidates)
        return tokens

    def _uniforms(self, rows: Sequence[SamplingRow], draws: _RowDraws) -> Tensor:
        numbers = [uniform(rows[i].params.seed, rows[i].position) for i in draws.row_list]
        return self._tensor(numbers, torch.float64)[:, None]

    def _raw_logprobs(self, logits: Tensor, layout: _Layout) -> Tensor | None:
        """[rows that want them, vocab]"""
        if layout.logprob_rows is None:
            return None
        return torch.log_softmax(logits.index_select(0, layout.logprob_rows), dim=-1)

    def _reported(self, tokens: Tensor, raw: Tensor, layout: _Layout) -> list[TokenLogprob | None]:
        """What each row reports of its token `tokens` [rows]."""
        assert layout.logprob_rows is not None
        chosen = raw.gather(1, tokens[layout.logprob_rows][:, None])[:, 0].tolist()
        top, top_ids = raw.topk(layout.num_top, dim=-1)
        reported = iter(zip(chosen, top.tolist(), top_ids.tolist(), strict=True))
        logprobs: list[TokenLogprob | None] = []
        for params in layout.params:
            if params.logprobs is None:
                logprobs.append(None)
            else:
                own, row_top, row_ids = next(reported)
                pairs = zip(row_ids[: params.logprobs], row_top[: params.logprobs], strict=True)
                # A grammar may allow fewer tokens than alternatives were asked for.
                logprobs.append(TokenLogprob(own, tuple(pair for pair in pairs if pair[1] > -math.inf)))
        return logprobs


def failed_rows(
    rows: Sequence[SamplingRow], had_tokens: Tensor, is_sound: Tensor, failures: Mapping[int, TokenFailure]
) -> dict[int, TokenFailure]:
    """The `failures` of processors, and rows that had tokens to pick from [rows] before restrictions and have none."""
    failed = dict(failures)
    for i in (had_tokens & ~is_sound).nonzero()[:, 0].tolist():
        if rows[i].bans is not None or rows[i].processors is not None:
            failed.setdefault(i, nothing_left(rows[i]))
    return failed


def sampled_tokens(
    token_ids: Tensor | NDArray[Any],
    is_sound: Tensor | NDArray[Any],
    logprobs: list[TokenLogprob | None] | None,
    failures: Mapping[int, TokenFailure] | None = None,
) -> SampledTokens:
    """Tokens [rows], without those of rows that are not sound."""
    ids: list[int | None] = token_ids.tolist()
    sound = is_sound.tolist()
    if not all(sound):
        ids = [token_id if good else None for token_id, good in zip(ids, sound, strict=True)]
    return SampledTokens(ids, logprobs, failures)


def _relative_logits(logits: Tensor, highest: Tensor, draws: _RowDraws) -> Tensor:
    """[n, vocab], scaled by temperature and moved so that each row's highest is 0; below min_p it is -inf. Relative to
    the highest, min_p is a plain threshold."""
    x = logits
    if len(draws.row_list) < logits.shape[0]:
        x, highest = logits.index_select(0, draws.rows), highest.index_select(0, draws.rows)
    x -= highest
    x /= draws.temperature
    if draws.log_min_p is not None:
        x.masked_fill_(x < draws.log_min_p, float("-inf"))
    return x


def _draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Columns [n, 1] drawn with probability proportional to `weights` [n, m] float32, at `uniforms` [n, 1] float64:
    an inverse CDF in order of the columns."""
    if weights.shape[1] > MAX_FLAT_DRAW:
        return _draw_in_blocks(weights, uniforms)
    cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
    return _first_above(cumulated, uniforms * cumulated[:, -1:])


def _draw_in_blocks(weights: Tensor, uniforms: Tensor) -> Tensor:
    """`_draw` in two levels, blocks of columns and columns of one block: cumulating a whole vocabulary in double
    precision costs several times more than all the rest of a draw."""
    num_rows, num_columns = weights.shape
    num_even = num_columns - num_columns % DRAW_BLOCK
    even = weights[:, :num_even].view(num_rows, -1, DRAW_BLOCK).sum(dim=-1)
    blocks = torch.cat((even, weights[:, num_even:].sum(dim=-1, keepdim=True)), dim=1)
    cumulated = blocks.cumsum(dim=-1, dtype=torch.float64)
    target = uniforms * cumulated[:, -1:]
    block = _first_above(cumulated, target)
    target -= cumulated.gather(1, block) - blocks.gather(1, block)
    columns = block * DRAW_BLOCK + torch.arange(DRAW_BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=num_columns - 1)) * (columns < num_columns)
    cumulated = inside.cumsum(dim=-1, dtype=torch.float64)
    # The two levels are rounded differently; no draw may fall off the end of its block for that.
    target = torch.minimum(target, cumulated[:, -1:] * (1 - 2.0**-_DOUBLE_BITS))
    return (block * DRAW_BLOCK + _first_above(cumulated, target)).clamp_(max=num_columns - 1)


def _first_above(cumulated: Tensor, target: Tensor) -> Tensor:
    """The first column [n, 1] of each row that is above the target: never one that adds nothing. The clamp is for
    weights that are not numbers, which would lead past the last column."""
    return torch.searchsorted(cumulated, target, right=True).clamp_(max=cumulated.shape[1] - 1)


def _draw_cut(x: Tensor, top_k: Tensor, top_p: Tensor, uniforms: Tensor, num_candidates: int) -> Tensor:
    """Token ids [n] drawn from the `top_k` best tokens of each row of `x` [n, vocab] (see `_relative_logits`), and of
    these from the fewest whose probability reaches `top_p`.

    Looks at `num_candidates` tokens of each row, and at more for the rows whose edge is not clearly among these.
    """
    vocab_size = x.shape[1]
    values, ids = _best(x, num_candidates)
    weights = values.exp()
    kept = (torch.arange(num_candidates, device=x.device) < top_k) & (weights > 0)
    weights *= kept
    cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    if num_candidates < vocab_size:
        total = torch.where(top_k < vocab_size, total, x.exp().sum(dim=-1, keepdim=True).double())
    kept &= cumulated - weights < top_p * total
    kept[:, 0] = True
    weights *= kept
    by_id, order = ids.sort(dim=-1)
    tokens = by_id.gather(1, _draw(weights.gather(1, order), uniforms))[:, 0]
    if num_candidates < vocab_size:
        edge = values.gather(1, kept.sum(dim=-1, keepdim=True) - 1)
        unsure = (values[:, -1:] >= edge)[:, 0].nonzero()[:, 0]
        if len(unsure):
            wider = min(vocab_size, WIDENING * num_candidates)
            tokens[unsure] = _draw_cut(x[unsure], top_k[unsure], top_p[unsure], uniforms[unsure], wider)
    return tokens


def _best(x: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Values and token ids of the best columns, best first, equal values by token id."""
    if num_candidates == x.shape[1]:
        values, ids = x.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = x.topk(num_candidates, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = x.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)
