"""Applies logits processors, and bans of tokens, to the scores of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.workers.engine.plan.step_plan import SamplingRow, TokenFailure
from slipstream.workers.engine.processors.row_processors import ProcessorError


def has_restrictions(rows: Sequence[SamplingRow]) -> bool:
    return any(row.bans is not None or row.processors is not None for row in rows)


def apply_processors(logits: Tensor, rows: Sequence[SamplingRow]) -> dict[int, TokenFailure]:
    """Runs the processors of the rows that have some on their scores [rows, vocab]. Returns the failures, by row: such
    a row keeps its scores. A row without a finite score is left out, as its fault is not the processor's. Waits for the
    device if there is a row with processors."""
    failures: dict[int, TokenFailure] = {}
    for i, row in enumerate(rows):
        if row.processors is None:
            continue
        scores = logits[i].to("cpu", copy=True)
        if not scores.amax().isfinite():
            continue
        try:
            logits[i] = row.processors.apply(scores).to(logits.device)
        except ProcessorError as error:
            failures[i] = TokenFailure("logits_processor_failed", f"the logits processor {error}")
    return failures


def apply_bans(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Sets the scores [rows, vocab] of tokens that are banned to -inf. Rows without bans are not touched."""
    banned_rows = [i for i, row in enumerate(rows) if row.bans is not None]
    if not banned_rows:
        return
    banned = np.empty((len(banned_rows), logits.shape[1]), np.bool_)
    for mask, i in zip(banned, banned_rows, strict=True):
        bans = rows[i].bans
        assert bans is not None
        bans.write(mask)
    index = torch.tensor(banned_rows, device=logits.device)
    masked = logits.index_select(0, index).masked_fill_(torch.from_numpy(banned).to(logits.device), float("-inf"))
    logits.index_copy_(0, index, masked)


def nothing_left(row: SamplingRow) -> TokenFailure:
    """The failure of a row with restrictions that leave no token, though its scores are sound."""
    params = row.params
    fields = list(params.restrictions)
    if row.grammar is not None:
        fields.append("the form of the answer (response_format, structured_outputs, guided_*, tools)")
    if row.masked_ids:
        fields.append("min_tokens")
    message = f"no token is left to pick at position {row.position} of the output, with {', '.join(fields)}"
    return TokenFailure("invalid_request", message)
