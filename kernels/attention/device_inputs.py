"""The sequences of a step in the memory of the device that computes it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """All tensors are int32 on one device. The numbers on the host are bounds that launches are sized by: a graph that
    was recorded with them serves every step that stays within them.

    The first `num_decodes` sequences have one query each, so their tokens are the first as well.
    """

    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens]: page id * page_tokens + offset in the page; negative: keys and values are not stored
    query_starts: Tensor  # [seqs + 1]
    kv_lens: Tensor  # [seqs] tokens up to and including this step; 0: a padding row, whose attention is zeros
    page_table: Tensor  # [seqs, max_pages]; columns behind a sequence's last page are never looked at
    num_decodes: int
    max_query_len: int
    max_kv_len: int

    @property
    def num_seqs(self) -> int:
        return self.kv_lens.shape[0]
