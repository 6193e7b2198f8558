"""Turns the scheduler's choice into the arrays of a step.

A decode step differs little from the one before: page tables stay the same, except that a sequence now and then begins
a page. So the arrays are kept from step to step, and a page table is copied only when another sequence comes to its
row.

The loop over decoding sequences is plain Python. For a few dozen sequences that is as fast as numpy. And after a model
has streamed its weights through the caches, code has to be fetched from memory again, where numpy's many short routines
cost several times what they cost in a tight loop.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np

from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.plan.step_plan import PageSend, PromptRows, SamplingRow, SendProgress, StepPlan
from slipstream.workers.engine.scheduling.scheduled_step import ScheduledChunk, ScheduledStep
from slipstream.workers.engine.scheduling.sequence import Sequence
from slipstream.workers.engine.scheduling.wanted_pages import WantedPages
from slipstream.workers.models.interface.step_arrays import GroupArrays, Int32s, StepArrays


class BatchBuilder:
    """Makes step plans. Their arrays are views of memory that the next `compose` overwrites."""

    def __init__(self, limits: EngineLimits) -> None:
        self._page_tokens = limits.page_tokens
        max_tokens, max_seqs = limits.max_step_tokens, min(limits.max_num_seqs, limits.max_step_tokens)
        self._counting = np.arange(max_tokens + 1, dtype=np.int32)
        self._token_ids = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._slots = np.zeros(max_tokens, np.int32)
        self._query_starts = np.arange(max_seqs + 1, dtype=np.int32)
        self._kv_lens = np.zeros(max_seqs, np.int32)
        num_blocks = limits.blocks_for(limits.max_model_len)
        self._page_table = np.zeros((max_seqs, num_blocks), np.int32)
        self._more_groups = [
            GroupArrays(np.zeros(max_tokens, np.int32), np.zeros((max_seqs, num_blocks), np.int32))
            for _ in limits.windows[1:]
        ]
        self._state_pages = np.zeros((max_seqs, limits.state_pages), np.int32)
        self._limits = limits
        self._decoding: list[Sequence] = []  # the sequences whose pages are in the first rows of the table
        # The latest plan of a plainly greedy decode step, which is reused for the next one of the same shape.
        self._plan = StepPlan(self._decode_arrays(0, 0), greedy=True)

    def build(self, step: ScheduledStep) -> tuple[StepPlan, list[SamplingRow]]:
        """`step` has at least one token. There are no sampling rows where the plan is greedy."""
        plan, rows = self._compose(step)
        return (replace(plan, state_copies=step.state_copies) if step.state_copies else plan), rows

    def _compose(self, step: ScheduledStep) -> tuple[StepPlan, list[SamplingRow]]:
        num_pages = self._lay_out_decoding(step.decoding)
        sampling = step.decoding
        prompt_rows = _prompt_rows(step) if step.num_scored_tokens else ()
        if step.chunks:
            arrays = self._with_chunks(step, num_pages)
            sampling = [*sampling, *(chunk.sequence for chunk in step.chunks if chunk.samples)]
        elif self._plan.arrays.page_table.shape == (len(sampling), num_pages):
            arrays = self._plan.arrays
        else:
            arrays = self._decode_arrays(len(sampling), num_pages)
        for sequence in sampling:
            if not sequence.is_plainly_greedy or len(sequence.tokens) < sequence.min_tokens:
                rows = [_sampling_row(sequence) for sequence in sampling]
                return StepPlan(arrays, False, *self._sends(step.chunks), prompt_rows=prompt_rows), rows
        if step.chunks:
            return StepPlan(arrays, True, *self._sends(step.chunks), prompt_rows=prompt_rows), []
        if arrays is not self._plan.arrays:
            self._plan = StepPlan(arrays, greedy=True)
        return self._plan, []

    def _decode_arrays(self, num_seqs: int, num_pages: int) -> StepArrays:
        """The arrays of a step with one token per sequence, in which sequences and tokens have the same indices."""
        return StepArrays(
            self._token_ids[:num_seqs],
            self._positions[:num_seqs],
            self._slots[:num_seqs],
            self._counting[: num_seqs + 1],
            self._kv_lens[:num_seqs],
            self._page_table[:num_seqs, :num_pages],
            self._counting[:num_seqs],
            self._group_arrays(num_seqs, num_seqs, num_pages),
            self._state_pages[:num_seqs],
        )

    def _group_arrays(self, num_tokens: int, num_seqs: int, num_pages: int) -> tuple[GroupArrays, ...]:
        return tuple(
            [GroupArrays(one.slots[:num_tokens], one.page_table[:num_seqs, :num_pages]) for one in self._more_groups]
        )

    def _lay_out_decoding(self, decoding: list[Sequence]) -> int:
        """Fills the first rows, and returns the number of pages of the longest sequence."""
        page_tokens, page_table = self._page_tokens, self._page_table
        token_ids, positions = self._token_ids.data, self._positions.data
        slots, kv_lens = self._slots.data, self._kv_lens.data
        known, num_known = self._decoding, len(self._decoding)
        last_page = -1
        for row, sequence in enumerate(decoding):
            position, pages = sequence.num_computed, sequence.pages
            page, offset = divmod(position, page_tokens)
            token_ids[row] = sequence.tokens[position]
            positions[row] = position
            kv_lens[row] = position + 1
            slots[row] = pages[page] * page_tokens + offset
            if row >= num_known or known[row] is not sequence:
                _fill(page_table, row, pages, len(pages))
            elif not offset:
                page_table[row, page] = pages[page]
            if page > last_page:
                last_page = page
        for group, arrays in enumerate(self._more_groups):
            self._lay_out_group(decoding, group, arrays)
        if self._limits.state_pages:
            for row, sequence in enumerate(decoding):
                self._state_pages[row] = sequence.state_pages
        self._decoding = decoding
        return last_page + 1

    def _lay_out_group(self, decoding: list[Sequence], group: int, arrays: GroupArrays) -> None:
        """Slots and pages of a further page group, by its number in `Sequence.more_pages`."""
        page_tokens, page_table, slots = self._page_tokens, arrays.page_table, arrays.slots.data
        known, num_known = self._decoding, len(self._decoding)
        for row, sequence in enumerate(decoding):
            pages = sequence.more_pages[group]
            page, offset = divmod(sequence.num_computed, page_tokens)
            slots[row] = pages[page] * page_tokens + offset
            if row >= num_known or known[row] is not sequence:
                _fill(page_table, row, pages, len(pages))
            elif not offset:
                page_table[row, page] = pages[page]

    def _with_chunks(self, step: ScheduledStep, num_pages: int) -> StepArrays:
        """Adds the chunks after the decoding sequences, which need `num_pages` columns of the table."""
        num_decoding, page_tokens = len(step.decoding), self._page_tokens
        query_starts = self._query_starts[: num_decoding + len(step.chunks) + 1]
        query_starts[: num_decoding + 1] = self._counting[: num_decoding + 1]
        sample_rows = list(range(num_decoding))
        end = num_decoding
        for row, chunk in enumerate(step.chunks, num_decoding):
            sequence, first, num_tokens = chunk.sequence, chunk.sequence.num_computed, chunk.num_tokens
            last = first + num_tokens
            begin, end = end, end + num_tokens
            num_own_pages = -(-last // page_tokens)
            num_pages = max(num_pages, num_own_pages)
            _fill(self._page_table, row, sequence.pages, num_own_pages)
            self._state_pages[row] = sequence.state_pages
            positions = self._positions[begin:end]
            np.add(self._counting[:num_tokens], first, out=positions)
            pages = self._page_table[row, positions // page_tokens]
            np.add(pages * page_tokens, positions % page_tokens, out=self._slots[begin:end])
            for of_group, arrays in zip(sequence.more_pages, self._more_groups, strict=True):
                _fill(arrays.page_table, row, of_group, num_own_pages)
                pages = arrays.page_table[row, positions // page_tokens]
                np.add(pages * page_tokens, positions % page_tokens, out=arrays.slots[begin:end])
            self._token_ids[begin:end] = sequence.tokens[first:last]
            query_starts[row + 1] = end
            self._kv_lens[row] = last
            if chunk.samples:
                sample_rows.append(end - 1)
        num_seqs = len(query_starts) - 1
        return StepArrays(
            self._token_ids[:end],
            self._positions[:end],
            self._slots[:end],
            query_starts,
            self._kv_lens[:num_seqs],
            self._page_table[:num_seqs, :num_pages],
            np.array(sample_rows, np.int32),
            self._group_arrays(end, num_seqs, num_pages),
            self._state_pages[:num_seqs],
        )

    def _sends(self, chunks: list[ScheduledChunk]) -> tuple[tuple[PageSend, ...], tuple[SendProgress, ...]]:
        """What sequences with a ticket begin to send in this step, and how much of it is complete after the step."""
        sends, progress = [], []
        for chunk in chunks:
            sequence, ticket = chunk.sequence, chunk.sequence.ticket
            if ticket is None:
                continue
            wanted = WantedPages.of_prompt(self._limits, ticket.first_page, sequence.num_tokens)
            if chunk.begins:
                sends.append(
                    PageSend(ticket, np.array(wanted.ids(sequence.tables, sequence.state_pages), np.int32).tobytes())
                )
            num_full = (sequence.num_computed + chunk.num_tokens) // self._page_tokens
            num_complete = ticket.first_page + (wanted.num_pages if chunk.samples else wanted.num_before(num_full))
            peer = ticket.destination
            progress.append(SendProgress(ticket.transfer_id, peer.epoch, peer.name, num_complete))
        return tuple(sends), tuple(progress)


def _fill(page_table: Int32s, row: int, pages: array[int], num_pages: int) -> None:
    page_table[row, :num_pages] = pages[:num_pages]
    page_table[row, num_pages:] = 0


def _prompt_rows(step: ScheduledStep) -> tuple[PromptRows, ...]:
    rows, begin = [], len(step.decoding)
    for chunk in step.chunks:
        scores, sequence = chunk.scores, chunk.sequence
        if scores:
            next_ids = sequence.tokens[scores.start + 1 : scores.stop + 1].tobytes()
            first_row = begin + scores.start - sequence.num_computed
            rows.append(PromptRows(first_row, next_ids, sequence.params.prompt_logprobs or 0))
        begin += chunk.num_tokens
    return tuple(rows)


def _sampling_row(sequence: Sequence) -> SamplingRow:
    masked = tuple(sequence.stop_ids) if len(sequence.tokens) < sequence.min_tokens else ()
    grammar = sequence.grammar if sequence.grammar is not None and sequence.grammar.restricts else None
    return SamplingRow(
        sequence.params, sequence.num_output, sequence.counts, masked, grammar, sequence.bans, sequence.processors
    )
