"""Which tokens a sequence contains and how often, kept up to date token by token for the sampling penalties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """Distinct tokens of a sequence and their counts in its output.

    Sparse, so that its size follows the text and not the vocabulary, and incremental, so that a step costs nothing
    that grows with the text. Prompt tokens are in it with a count of zero.
    """

    __slots__ = ("_ids", "_index", "_output_counts")

    def __init__(self, prompt_ids: npt.NDArray[np.int32], output_ids: npt.NDArray[np.int32]) -> None:
        distinct = np.unique(prompt_ids)
        self._index: dict[int, int] = {token_id: i for i, token_id in enumerate(distinct.tolist())}
        self._ids = np.empty(max(64, 2 * len(distinct)), np.int64)
        self._ids[: len(distinct)] = distinct
        self._output_counts = np.zeros(len(self._ids), np.float32)
        for token_id in output_ids.tolist():
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        at = self._index.get(token_id)
        if at is None:
            at = len(self._index)
            if at == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._output_counts = np.concatenate([self._output_counts, np.zeros_like(self._output_counts)])
            self._index[token_id] = at
            self._ids[at] = token_id
        self._output_counts[at] += 1

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Distinct tokens `[n]`, in no particular order. A view: valid until the next `add`."""
        return self._ids[: len(self._index)]

    @property
    def output_counts(self) -> npt.NDArray[np.float32]:
        """How often each of `ids` is in the output `[n]`. A view: valid until the next `add`."""
        return self._output_counts[: len(self._index)]
