"""Samples on a GPU, waiting for the device only once per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.workers.engine.execution.gpu.gpu_inputs import Upload
from slipstream.workers.engine.plan.step_plan import GREEDY_BELOW, SampledTokens, SamplingRow
from slipstream.workers.engine.sampling.grammar_mask import apply_grammar_masks
from slipstream.workers.engine.sampling.restrictions import apply_bans, apply_processors, has_restrictions
from slipstream.workers.engine.sampling.sampler import Sampler, failed_rows, sampled_tokens, uniform


class TokenReader:
    """Brings sampled tokens to the host: a copy into pinned memory is queued, and its event waited for."""

    def __init__(self, device: torch.device) -> None:
        self._is_pinned = device.type == "cuda"
        self._host = torch.empty(2, 0, dtype=torch.int32)
        self._event = torch.cuda.Event() if self._is_pinned else None  # type: ignore[no-untyped-call]

    def read(self, tokens: Tensor, is_sound: Tensor) -> SampledTokens:
        """`tokens` and `is_sound` are [rows]; None where a row is not sound."""
        num_rows = len(tokens)
        if self._host.shape[1] < num_rows:
            self._host = torch.empty(2, 2 * num_rows, dtype=torch.int32, pin_memory=self._is_pinned)
        for host, device in zip(self._host, (tokens, is_sound), strict=True):
            host[:num_rows].copy_(device.to(torch.int32), non_blocking=True)
        if self._event is not None:
            self._event.record()
            self._event.synchronize()
        token_ids, sound = self._host[:, :num_rows]
        return sampled_tokens(token_ids, sound, None)


class GpuSampler:
    """`Sampler` for a GPU. `kernels` is `kernels.sampling.gpu.sampling`. Log-probabilities (and, without `kernels`,
    everything but greedy tokens) are left to `Sampler`, which waits for the device where it has to look at numbers."""

    def __init__(self, vocab_size: int, device: torch.device, kernels: Any = None) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._kernels = kernels
        self._sampler = Sampler(vocab_size, device)
        self._reader = TokenReader(device)
        # One per purpose, so that none of them has to wait for the copy of another.
        self._draws, self._counts, self._biases, self._masks = (Upload(device, torch.float64) for _ in range(4))

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """One token per row, None if its scores leave none to pick; the best ones if there are no `rows`. `logits` is
        [rows, vocab] in float32, and is overwritten."""
        is_greedy = all(row.params.temperature < GREEDY_BELOW for row in rows)
        if any(row.params.logprobs is not None for row in rows):
            return self._sampler.sample(logits, rows)
        if self._kernels is None:
            if not is_greedy or any(_changes_scores(row) for row in rows):
                return self._sampler.sample(logits, rows)
            highest, tokens = logits.max(dim=-1)
            return self._reader.read(tokens, highest.isfinite())
        apply_grammar_masks(logits, rows)
        if not has_restrictions(rows):
            self._change_scores(logits, rows)
            return self._pick(logits, rows, is_greedy)
        had_tokens = logits.amax(dim=-1).isfinite()
        failures = apply_processors(logits, rows)
        apply_bans(logits, rows)
        self._change_scores(logits, rows)
        picked = self._pick(logits, rows, is_greedy)
        is_sound = torch.tensor([token_id is not None for token_id in picked.token_ids], device=self._device)
        failures = failed_rows(rows, had_tokens, is_sound, failures)
        ids = [None if i in failures else token_id for i, token_id in enumerate(picked.token_ids)]
        return SampledTokens(ids, None, failures)

    def _pick(self, logits: Tensor, rows: Sequence[SamplingRow], is_greedy: bool) -> SampledTokens:
        return self._reader.read(*self._kernels.sample(logits, None if is_greedy else self._draws_of(rows)))

    def _draws_of(self, rows: Sequence[SamplingRow]) -> Any:
        columns = [
            (p.temperature, math.log(p.min_p) if p.min_p > 0 else -math.inf, self._top_k(p.top_k), p.top_p)
            for p in (row.params for row in rows)
        ]
        uniforms = [uniform(row.params.seed, row.position) for row in rows]
        sent = self._send(self._draws, np.array([*zip(*columns, strict=True), uniforms]))
        temperature, log_min_p, top_k, top_p, drawn = sent
        return self._kernels.Draws(
            temperature.to(torch.float32), log_min_p.to(torch.float32), top_k.to(torch.int32), top_p, drawn
        )

    def _top_k(self, top_k: int) -> int:
        return top_k if 0 < top_k < self._vocab_size else self._vocab_size

    def _change_scores(self, logits: Tensor, rows: Sequence[SamplingRow]) -> None:
        """Applies penalties, biases and masks, in the same order as `Sampler`."""
        counted = [(i, row.counts) for i, row in enumerate(rows) if row.counts is not None]
        if counted:
            sizes = [len(counts.ids) for _, counts in counted]
            ids, numbers = zip(*((counts.ids, counts.output_counts) for _, counts in counted), strict=True)
            entries = [np.repeat([i for i, _ in counted], sizes), np.concatenate(ids), np.concatenate(numbers)]
            params = [row.params for row in rows]
            factors = np.array(
                [[p.repetition_penalty, p.frequency_penalty, p.presence_penalty] for p in params], np.float64
            ).T
            width = max(len(rows), sum(sizes))
            both = np.zeros((6, width))
            both[:3, : sum(sizes)], both[3:, : len(rows)] = entries, factors
            sent = self._send(self._counts, both)
            repetition, frequency, presence = (row[: len(rows)].to(torch.float32) for row in sent[3:])
            updates = self._updates(sent[:3, : sum(sizes)])
            self._kernels.penalise(logits, self._kernels.Penalties(updates, repetition, frequency, presence))
        biases = [(i, token_id, value) for i, row in enumerate(rows) for token_id, value in row.params.logit_bias]
        masks = [
            (i, token_id, -math.inf) for i, row in enumerate(rows) if row.grammar is None for token_id in row.masked_ids
        ]
        for upload, changes in ((self._biases, biases), (self._masks, masks)):
            if changes:
                self._kernels.add_scores(logits, self._updates(self._send(upload, np.array(changes, np.float64).T)))

    def _updates(self, entries: Tensor) -> Any:
        rows, token_ids, values = entries
        return self._kernels.Updates(rows.to(torch.int32), token_ids.to(torch.int32), values.to(torch.float32))

    def _send(self, upload: Upload, numbers: np.ndarray[Any, np.dtype[np.float64]]) -> Tensor:
        """Sends numbers as float64, which represents both small integers and float32 numbers exactly."""
        upload.begin(numbers.size).reshape(numbers.shape)[...] = numbers
        sent = torch.empty(numbers.shape, dtype=torch.float64, device=self._device)
        upload.copy_to(sent)
        return sent


def _changes_scores(row: SamplingRow) -> bool:
    has_objects = row.counts is not None or row.grammar is not None
    return has_objects or bool(row.masked_ids or row.params.logit_bias or row.params.restrictions)
