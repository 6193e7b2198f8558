"""The numbers of one step as flat int32 arrays on the host, which are the input of every model on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """The tokens of one sequence in a step: positions `start .. start + len(token_ids)`."""

    start: int
    token_ids: tuple[int, ...]
    page_ids: bytes  # packed int32; the pages of positions 0 .. end, in order: ceil(end / page_tokens) of them
    samples: bool  # the last position's logits are wanted
    more_page_ids: tuple[bytes, ...] = ()  # those of other page groups
    state_pages: bytes = b""  # packed int32; as many of each sequence

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class PackedArrays:
    """`StepArrays` in the form of bytes, to be sent to another rank."""

    num_tokens: int
    num_seqs: int
    num_samples: int
    num_pages: int  # columns of the page table
    numbers: bytes  # packed int32: the arrays one after the other
    num_groups: int = 1  # page groups

    def unpack(self) -> StepArrays:
        """Read-only views of `numbers`. Raises ValueError if their size is wrong."""
        tokens, seqs, num_more = self.num_tokens, self.num_seqs, self.num_groups - 1
        of_table = seqs * self.num_pages
        sizes = (tokens, tokens, tokens, seqs + 1, seqs, of_table, self.num_samples, *(tokens, of_table) * num_more)
        numbers = np.frombuffer(self.numbers, np.int32)
        if num_more < 0 or min(sizes) < 0 or numbers.size != sum(sizes):
            raise ValueError(f"{numbers.size} numbers are no step of {sum(sizes)}")
        parts = np.split(numbers, np.cumsum(sizes[:-1]))
        token_ids, positions, slots, starts, kv_lens, table, rows = parts[:7]
        groups = tuple(
            GroupArrays(parts[at], parts[at + 1].reshape(seqs, self.num_pages)) for at in range(7, len(parts), 2)
        )
        table = table.reshape(seqs, self.num_pages)
        return StepArrays(token_ids, positions, slots, starts, kv_lens, table, rows, groups)


@dataclass(frozen=True, slots=True)
class GroupArrays:
    """Where the keys and values of a page group are, as in `StepArrays`. Of a group with a window, entries of the table
    before what a query sees may be any numbers."""

    slots: Int32s  # [tokens]
    page_table: Int32s  # [seqs, pages of the longest]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The tokens of all sequences of a step, one sequence after the other (see `engine.plan`). `batch_builder` makes
    them incrementally; `build` is the simple, obvious way.

    All arrays are int32 and C-contiguous, except that rows of `page_table` may be further apart than they are long.
    They may be views of memory that the next step overwrites: they are valid until the step has been computed. A slot
    is the place of a token's keys and values: page id * page_tokens + offset in the page. `slots` and `page_table` are
    those of the first page group, and `groups` has those of the others. `state_pages` have no columns where the model
    has no states beside keys and values; such models are not dealt out to several ranks, so they are not packed.
    """

    token_ids: Int32s  # [tokens]
    positions: Int32s  # [tokens]
    slots: Int32s  # [tokens]
    query_starts: Int32s  # [seqs + 1]: the tokens of sequence i are query_starts[i] .. query_starts[i + 1]
    kv_lens: Int32s  # [seqs]: tokens up to and including this step
    page_table: Int32s  # [seqs, pages of the longest]; 0 behind a sequence's last page
    sample_rows: Int32s  # [n]: tokens whose scores are wanted, in order of the sequences
    groups: tuple[GroupArrays, ...] = ()
    state_pages: Int32s = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [seqs, pages of a state]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.kv_lens)

    def pack(self) -> PackedArrays:
        table = self.page_table
        fields = (self.token_ids, self.positions, self.slots, self.query_starts, self.kv_lens, table.ravel())
        more = [array for group in self.groups for array in (group.slots, group.page_table.ravel())]
        numbers = np.concatenate((*fields, self.sample_rows, *more)).tobytes()
        num_groups = 1 + len(self.groups)
        return PackedArrays(self.num_tokens, self.num_seqs, len(self.sample_rows), table.shape[1], numbers, num_groups)

    @staticmethod
    def build(slices: Sequence[SequenceSlice], page_tokens: int) -> StepArrays:
        """Lays out `slices`, at least one, each with at least one token and pages for all its positions."""
        query_lens = np.array([len(s.token_ids) for s in slices], np.int32)
        kv_lens = np.array([s.end for s in slices], np.int32)
        query_starts = np.zeros(len(slices) + 1, np.int32)
        np.cumsum(query_lens, out=query_starts[1:])
        num_tokens = int(query_starts[-1])
        token_ids = np.fromiter(chain.from_iterable(s.token_ids for s in slices), np.int32, num_tokens)
        seqs = np.repeat(np.arange(len(slices)), query_lens)
        positions = np.arange(num_tokens, dtype=np.int32) + (kv_lens - query_starts[1:])[seqs]
        num_pages = (kv_lens - 1) // page_tokens + 1
        columns = np.arange(num_pages.max())

        def of_group(page_ids: bytes) -> GroupArrays:
            page_table = np.zeros((len(slices), columns.size), np.int32)
            page_table[columns < num_pages[:, None]] = np.frombuffer(page_ids, np.int32)
            slots = page_table[seqs, positions // page_tokens] * page_tokens + positions % page_tokens
            return GroupArrays(slots, page_table)

        first = of_group(b"".join(s.page_ids for s in slices))
        more = tuple(of_group(b"".join(ids)) for ids in zip(*(s.more_page_ids for s in slices), strict=True))
        samples = np.array([s.samples for s in slices])
        sample_rows = query_starts[1:][samples] - 1
        states = np.frombuffer(b"".join(s.state_pages for s in slices), np.int32)
        states = states.reshape(len(slices), states.size // len(slices))
        return StepArrays(
            token_ids, positions, first.slots, query_starts, kv_lens, first.page_table, sample_rows, more, states
        )
