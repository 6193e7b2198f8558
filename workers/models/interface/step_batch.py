"""The tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.workers.models.interface.step_arrays import GroupArrays, Int32s, SequenceSlice, StepArrays


@dataclass(frozen=True)
class StepBatch:
    """A step for a model: the host's `arrays`, and what a torch model needs of them on `device`, made when first
    asked for."""

    arrays: StepArrays
    page_tokens: int
    device: torch.device | str = "cpu"

    @staticmethod
    def build(slices: Sequence[SequenceSlice], page_tokens: int, device: torch.device | str = "cpu") -> StepBatch:
        return StepBatch(StepArrays.build(slices, page_tokens), page_tokens, device)

    @cached_property
    def token_ids(self) -> Tensor:
        """[tokens] int64"""
        return self.on_device(self.arrays.token_ids)

    @cached_property
    def positions(self) -> Tensor:
        """[tokens] int64"""
        return self.on_device(self.arrays.positions)

    @cached_property
    def slots(self) -> Tensor:
        """[tokens] int64"""
        return self.on_device(self.arrays.slots)

    @cached_property
    def query_lens(self) -> tuple[int, ...]:
        """[seqs] tokens of this step"""
        return tuple(np.diff(self.arrays.query_starts).tolist())

    @cached_property
    def kv_lens(self) -> tuple[int, ...]:
        """[seqs] tokens up to and including this step"""
        return tuple(self.arrays.kv_lens.tolist())

    @cached_property
    def page_table(self) -> Tensor:
        """[seqs, max_pages] int64, on the host: attention is planned there"""
        return torch.from_numpy(self.arrays.page_table.astype(np.int64))

    @cached_property
    def state_pages(self) -> Tensor:
        """[seqs, pages of a state] int64"""
        return self.on_device(self.arrays.state_pages)

    @cached_property
    def fresh_pages(self) -> Tensor:
        """[n] int64: pages that this step begins and does not fill"""
        return self.begun_pages(self.arrays.page_table)

    @cached_property
    def groups(self) -> tuple[StepBatch | GroupInputs, ...]:
        """What attention in each page group needs."""
        return (self, *(GroupInputs(self, arrays) for arrays in self.arrays.groups))

    @cached_property
    def sample_indices(self) -> Tensor:
        """[n] int64: rows of the tokens whose logits are wanted, in order of the sequences"""
        return self.on_device(self.arrays.sample_rows)

    def begun_pages(self, page_table: Int32s) -> Tensor:
        kv_lens = self.arrays.kv_lens
        last_pages = (kv_lens - 1) // self.page_tokens
        starts = kv_lens - np.diff(self.arrays.query_starts)
        begun = (last_pages * self.page_tokens >= starts) & (kv_lens % self.page_tokens != 0)
        return self.on_device(page_table[begun, last_pages[begun]])

    def on_device(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)


@dataclass(frozen=True)
class GroupInputs:
    """A step's attention in a page group other than the first."""

    step: StepBatch
    arrays: GroupArrays

    @property
    def positions(self) -> Tensor:
        return self.step.positions

    @property
    def query_lens(self) -> tuple[int, ...]:
        return self.step.query_lens

    @property
    def kv_lens(self) -> tuple[int, ...]:
        return self.step.kv_lens

    @cached_property
    def slots(self) -> Tensor:
        """[tokens] int64"""
        return self.step.on_device(self.arrays.slots)

    @cached_property
    def page_table(self) -> Tensor:
        """[seqs, max_pages] int64, on the host"""
        return torch.from_numpy(self.arrays.page_table.astype(np.int64))

    @cached_property
    def fresh_pages(self) -> Tensor:
        """[n] int64: pages that this step begins and does not fill"""
        return self.step.begun_pages(self.arrays.page_table)
