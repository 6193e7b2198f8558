"""Applies grammars to the scores of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.workers.engine.plan.step_plan import SamplingRow


def apply_grammar_masks(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Sets the scores [rows, vocab] of tokens that a row's grammar does not allow to -inf. Rows without a grammar are
    not touched. With a GPU, the masks are made while it computes what is queued."""
    constrained = [i for i, row in enumerate(rows) if row.grammar is not None]
    if not constrained:
        return
    vocab_size = logits.shape[1]
    bits = np.empty((len(constrained), -(-vocab_size // 8)), np.uint8)
    for mask, i in zip(bits, constrained, strict=True):
        grammar = rows[i].grammar
        assert grammar is not None
        grammar.write_allowed(mask, rows[i].masked_ids)
    forbidden = np.unpackbits(~bits, axis=1, count=vocab_size, bitorder="little").view(np.bool_)
    index = torch.tensor(constrained, device=logits.device)
    masked = logits.index_select(0, index).masked_fill_(torch.from_numpy(forbidden).to(logits.device), float("-inf"))
    logits.index_copy_(0, index, masked)
