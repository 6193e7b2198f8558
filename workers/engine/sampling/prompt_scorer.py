"""Log-probabilities of prompt tokens, from the scores of the rows before them.

The scores of a whole prompt would take more memory than the model: 8,192 rows over a vocabulary of 128k are 4 GiB. So
rows go through the output layer in blocks, of which only what is reported is kept.

A log-probability is taken as the sampler takes it, so that it is that of the same token if it had been generated,
wherever a model's scores do not depend on how many tokens are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.workers.engine.plan.step_plan import PromptRows, ScoredRows

BLOCK_BYTES = 32 << 20  # of scores; log-probabilities take as much once more


def block_rows(vocab_size: int) -> int:
    """Rows of a block."""
    return max(1, BLOCK_BYTES // (4 * vocab_size))


def rows_of(plan_rows: Sequence[PromptRows]) -> NDArray[np.int64]:
    """The rows of all sequences, one after the other, [n]."""
    return np.concatenate([one.first_row + np.arange(len(one.next_ids) // 4) for one in plan_rows])


def scored_in_blocks(
    logits_of: Callable[[Tensor], Tensor | None], hidden: Tensor, plan_rows: Sequence[PromptRows], vocab_size: int
) -> Tensor | None:
    """`logits_of` some rows of `hidden` [tokens, hidden_size] are [rows, vocab] in float32. Every rank makes the same
    calls; None where these return None. See `reported`."""
    rows = torch.from_numpy(rows_of(plan_rows)).to(hidden.device)
    next_ids = next_ids_of(plan_rows).to(hidden.device)
    num_top, size = most_top(plan_rows, vocab_size), block_rows(vocab_size)
    parts: list[Tensor] = []
    for at in range(0, len(rows), size):
        logits = logits_of(hidden.index_select(0, rows[at : at + size]))
        if logits is not None:
            parts.append(reported(logits, next_ids[at : at + size], num_top))
    return torch.cat(parts) if parts else None


def next_ids_of(plan_rows: Sequence[PromptRows]) -> Tensor:
    """The tokens behind the rows, [n] int64."""
    packed = b"".join([one.next_ids for one in plan_rows])
    return torch.from_numpy(np.frombuffer(packed, np.int32).astype(np.int64))


def most_top(plan_rows: Sequence[PromptRows], vocab_size: int) -> int:
    return min(vocab_size, max(one.num_top for one in plan_rows))


def reported(logits: Tensor, next_ids: Tensor, num_top: int) -> Tensor:
    """What is reported of rows [n, vocab], [n, 2 + 2 * num_top] in float64: the log-probability of the next token, its
    rank, the ids of the best tokens, theirs. Float64 holds each of them as it is, so that one copy brings all from a
    device. Equal tokens share the worst rank of them, as in vLLM."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logprobs.gather(1, next_ids[:, None])
    # Bytes are summed in a fifth of the time that booleans take.
    ranks = (logprobs >= own).view(torch.uint8).sum(dim=-1, keepdim=True, dtype=torch.int32)
    top, top_ids = logprobs.topk(num_top, dim=-1)
    return torch.cat([column.double() for column in (own, ranks, top_ids, top)], dim=1)


def by_sequence(numbers: Tensor, plan_rows: Sequence[PromptRows]) -> Iterator[ScoredRows]:
    """Divides what is `reported` of all rows among the sequences."""
    columns = numbers.cpu().numpy()
    most, at = (columns.shape[1] - 2) // 2, 0
    for one in plan_rows:
        num_rows, num_top = len(one.next_ids) // 4, min(one.num_top, most)
        own, at = columns[at : at + num_rows], at + num_rows
        yield ScoredRows(
            own[:, 0].astype(np.float32),
            own[:, 1].astype(np.int32),
            own[:, 2 : 2 + num_top].astype(np.int32),
            own[:, 2 + most : 2 + most + num_top].astype(np.float32),
        )
