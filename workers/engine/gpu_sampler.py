"""Sampling on a GPU, with one wait for the device a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.workers.engine.plan import GREEDY_BELOW, SampledTokens, SamplingRow
from slipstream.workers.engine.sampler import Sampler, sampled_tokens


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
    """`Sampler` for a GPU: what most rows ask for is computed there; penalties, biases, masked tokens and
    log-probabilities go through `Sampler`, which waits for the device where it has to look at numbers."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._sampler = Sampler(vocab_size, device)
        self._reader = TokenReader(device)

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """One token a row, None where the scores leave none to pick; the best ones where there are no `rows`. `logits`
        is [rows, vocab] in float32 and is overwritten."""
        if any(not is_plain(row) or row.params.temperature >= GREEDY_BELOW for row in rows):
            return self._sampler.sample(logits, rows)
        highest, tokens = logits.max(dim=-1)
        return self._reader.read(tokens, highest.isfinite())


def is_plain(row: SamplingRow) -> bool:
    """Whether the model's scores are drawn from as they are, and nothing but the token is reported."""
    params = row.params
    return row.counts is None and not row.masked_ids and not params.logit_bias and params.logprobs is None
