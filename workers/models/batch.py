"""The tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.workers.engine.plan import SequenceSlice


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The tokens of all sequences of a step, one sequence after the other (see `engine.plan`).

    A slot is where a token's keys and values live: page id * page_tokens + offset in the page.
    """

    token_ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    slots: Tensor  # [tokens] int64
    query_lens: tuple[int, ...]  # [seqs] tokens of this step
    kv_lens: tuple[int, ...]  # [seqs] tokens up to and including this step
    page_table: Tensor  # [seqs, max_pages] int64, on the host: attention is planned there
    fresh_pages: Tensor  # [n] int64: pages that this step begins and does not fill
    sample_indices: Tensor  # [n] int64: rows of the tokens whose logits are wanted, in order of the sequences

    @staticmethod
    def build(slices: Sequence[SequenceSlice], page_tokens: int, device: torch.device | str = "cpu") -> StepBatch:
        """Lays out `slices`, at least one, each with at least one token and pages for all its positions."""
        query_lens = np.array([len(s.token_ids) for s in slices])
        kv_lens = np.array([s.end for s in slices])
        samples = np.array([s.samples for s in slices])
        ends = np.cumsum(query_lens)
        token_ids = np.fromiter(chain.from_iterable(s.token_ids for s in slices), np.int64, int(ends[-1]))
        seqs = np.repeat(np.arange(len(slices)), query_lens)
        positions = np.arange(ends[-1]) + (kv_lens - ends)[seqs]
        last_pages = (kv_lens - 1) // page_tokens
        columns = np.arange(last_pages.max() + 1)
        page_table = np.zeros((len(slices), columns.size), dtype=np.int64)
        page_table[columns <= last_pages[:, None]] = np.frombuffer(b"".join(s.page_ids for s in slices), np.int32)
        slots = page_table[seqs, positions // page_tokens] * page_tokens + positions % page_tokens
        begun = (last_pages * page_tokens >= kv_lens - query_lens) & (kv_lens % page_tokens != 0)

        def on_device(values: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(values).to(device)

        return StepBatch(
            token_ids=on_device(token_ids),
            positions=on_device(positions),
            slots=on_device(slots),
            query_lens=tuple(query_lens.tolist()),
            kv_lens=tuple(kv_lens.tolist()),
            page_table=torch.from_numpy(page_table),
            fresh_pages=on_device(page_table[begun, last_pages[begun]]),
            sample_indices=on_device(ends[samples] - 1),
        )
