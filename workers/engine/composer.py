"""From what the scheduler has chosen to the numbers of a step.

A decode step differs little from the one before: the page tables stay, but for a page that some sequence has begun. So
the arrays live from step to step, a page table is copied only when another sequence comes to its row, and everything
else is computed for all sequences at once. Nothing here costs Python work per token.
"""

from __future__ import annotations

import numpy as np

from slipstream.workers.engine.limits import EngineLimits
from slipstream.workers.engine.plan import PageSend, SamplingRow, SendProgress, StepPlan
from slipstream.workers.engine.scheduler import ScheduledChunk, ScheduledStep
from slipstream.workers.engine.sequence import Sequence
from slipstream.workers.engine.step_arrays import Int32s, StepArrays


class Composer:
    """The arrays of a plan are views of memory that the next `compose` writes over."""

    def __init__(self, limits: EngineLimits) -> None:
        self._page_tokens = limits.page_tokens
        max_tokens, max_seqs = limits.max_step_tokens, min(limits.max_num_seqs, limits.max_step_tokens)
        self._counting = np.arange(max_tokens + 1, dtype=np.int32)
        self._token_ids = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._slots = np.zeros(max_tokens, np.int32)
        self._query_starts = np.arange(max_seqs + 1, dtype=np.int32)
        self._kv_lens = np.zeros(max_seqs, np.int32)
        self._page_table = np.zeros((max_seqs, limits.pages_for(limits.max_model_len)), np.int32)
        self._rows: list[Sequence] = []  # whose decoding has its pages in each row of the table

    def compose(self, step: ScheduledStep) -> tuple[StepPlan, list[SamplingRow]]:
        """`step` has at least one token. There are no sampling rows where the plan is greedy."""
        num_decoding = len(step.decoding)
        num_tokens, num_seqs = num_decoding + step.num_chunk_tokens, num_decoding + len(step.chunks)
        positions = self._positions[:num_tokens]
        self._lay_out_decoding(step.decoding)
        query_starts, seqs = self._counting[: num_seqs + 1], self._counting[:num_seqs]
        sample_rows, sampling = seqs, step.decoding
        if step.chunks:
            query_starts = self._query_starts[: num_seqs + 1]
            self._lay_out_chunks(step.chunks, num_decoding, query_starts)
            samples = [at for at, chunk in enumerate(step.chunks, num_decoding + 1) if chunk.samples]
            sample_rows = np.concatenate((seqs[:num_decoding], query_starts[samples] - 1))
            sampling = [*sampling, *(chunk.sequence for chunk in step.chunks if chunk.samples)]
            seqs = np.repeat(seqs, np.diff(query_starts))
        kv_lens, slots = self._kv_lens[:num_seqs], self._slots[:num_tokens]
        columns, offsets = np.divmod(positions, self._page_tokens)
        np.multiply(self._page_table[seqs, columns], self._page_tokens, out=slots)
        slots += offsets
        num_pages = (int(kv_lens.max()) - 1) // self._page_tokens + 1
        page_table = self._page_table[:num_seqs, :num_pages]
        arrays = StepArrays(
            self._token_ids[:num_tokens], positions, slots, query_starts, kv_lens, page_table, sample_rows
        )
        greedy = all(s.is_plainly_greedy and len(s.tokens) >= s.min_tokens for s in sampling)
        rows = [] if greedy else [_sampling_row(sequence) for sequence in sampling]
        return StepPlan(arrays, greedy, *self._sends(step.chunks)), rows

    def _lay_out_decoding(self, decoding: list[Sequence]) -> None:
        """Rows 0 .. len(decoding) of everything that is counted by sequences or by tokens; here these are the same."""
        num, known = len(decoding), self._rows
        self._rows = decoding
        self._token_ids[:num] = [sequence.tokens[-1] for sequence in decoding]
        positions = self._positions[:num]
        positions[:] = [sequence.num_computed for sequence in decoding]
        np.add(positions, 1, out=self._kv_lens[:num])
        if decoding == known:
            for row in np.flatnonzero(positions % self._page_tokens == 0).tolist():  # those that begin a page
                pages = decoding[row].pages
                self._page_table[row, len(pages) - 1] = pages[-1]
            return
        for row, sequence in enumerate(decoding):
            pages = sequence.pages
            if row < len(known) and known[row] is sequence:
                self._page_table[row, len(pages) - 1] = pages[-1]
            else:
                self._set_pages(row, sequence, len(pages))

    def _lay_out_chunks(self, chunks: list[ScheduledChunk], num_before: int, query_starts: Int32s) -> None:
        """Behind `num_before` sequences of one token."""
        at = num_before
        query_starts[: num_before + 1] = self._counting[: num_before + 1]
        for row, chunk in enumerate(chunks, num_before):
            sequence, start, end = chunk.sequence, at, at + chunk.num_tokens
            first, last = sequence.num_computed, sequence.num_computed + chunk.num_tokens
            self._token_ids[start:end] = sequence.tokens[first:last]
            np.add(self._counting[: chunk.num_tokens], first, out=self._positions[start:end])
            query_starts[row + 1] = end
            self._kv_lens[row] = last
            self._set_pages(row, sequence, -(-last // self._page_tokens))
            at = end

    def _set_pages(self, row: int, sequence: Sequence, num_pages: int) -> None:
        self._page_table[row, :num_pages] = sequence.pages[:num_pages]
        self._page_table[row, num_pages:] = 0

    def _sends(self, chunks: list[ScheduledChunk]) -> tuple[tuple[PageSend, ...], tuple[SendProgress, ...]]:
        """What sequences with a ticket begin to send, and what of it is complete after this step."""
        sends, progress = [], []
        for chunk in chunks:
            sequence, ticket = chunk.sequence, chunk.sequence.ticket
            if ticket is None:
                continue
            if chunk.begins:
                wanted = sequence.pages[ticket.first_page : ticket.first_page + ticket.num_pages]
                sends.append(PageSend(ticket, wanted.tobytes()))
            num_complete = (sequence.num_computed + chunk.num_tokens) // self._page_tokens
            if chunk.samples:
                num_complete = len(sequence.pages)
            peer = ticket.destination
            progress.append(SendProgress(ticket.transfer_id, peer.epoch, peer.name, num_complete))
        return tuple(sends), tuple(progress)


def _sampling_row(sequence: Sequence) -> SamplingRow:
    masked = tuple(sequence.stop_ids) if len(sequence.tokens) < sequence.min_tokens else ()
    return SamplingRow(sequence.params, sequence.num_output, sequence.counts, masked)
