"""Drives a model step by step over a pool of scattered pages, as the engine's runner does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.native_model import NativeModel
from slipstream.workers.models.ops_model import OpsModel

NUM_PAGES = 288


@dataclass
class PagedRun:
    """Sequences by name; each `step` computes the next tokens of some. The pool is in the model's dtype or in codes of
    `codes`, and starts out as nan."""

    model: OpsModel | NativeModel
    page_tokens: int = 8
    codes: torch.dtype | None = None
    positions: dict[str, int] = field(default_factory=dict)
    pages: dict[str, list[list[int]]] = field(default_factory=dict)  # by page group

    def __post_init__(self) -> None:
        dtype = self.codes or self.model.dtype
        shape = kv_shape(self.model.config, self.model.tp, NUM_PAGES, self.page_tokens, dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        self.kv = torch.full((num_bytes,), 0xFF, dtype=torch.uint8).view(dtype).view(shape)  # nan in every float
        self.free = np.random.default_rng(0).permutation(NUM_PAGES).tolist()

    def step(self, tokens: dict[str, list[int]], layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        """Logits of every token of the step, [tokens, vocab], on rank 0."""
        batch = StepBatch.build([self._slice(name, ids) for name, ids in tokens.items()], self.page_tokens)
        logits = self.model.logits(self.model.forward(batch, self.kv, layer_done))
        return None if logits is None else logits.clone()  # the next step writes over it

    def _slice(self, name: str, token_ids: list[int]) -> SequenceSlice:
        start = self.positions.get(name, 0)
        end = self.positions[name] = start + len(token_ids)
        pages = self.pages.setdefault(name, [[] for _ in self.model.config.kv.page_groups.windows])
        for of_group in pages:
            while len(of_group) * self.page_tokens < end:
                of_group.append(self.free.pop())
        first, *more = (np.array(of_group, np.int32).tobytes() for of_group in pages)
        return SequenceSlice(start, tuple(token_ids), first, True, tuple(more))
