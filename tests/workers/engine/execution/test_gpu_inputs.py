"""A step's numbers reach the device as they are, whatever the step before left there."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.workers.engine.execution.gpu.gpu_inputs import ALIGNED_INTS, PAD_SLOT, DecodeInputs, StepUpload
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays

CPU = torch.device("cpu")
PAGE_TOKENS, MAX_SEQS, MAX_PAGES = 4, 5, 6


def step(rng: np.random.Generator, query_lens: list[int]) -> StepArrays:
    """Random tokens, pages and contexts; the last query of every sequence is sampled from but for the first one."""
    slices = []
    for i, num_queries in enumerate(query_lens):
        start = int(rng.integers(0, MAX_PAGES * PAGE_TOKENS - num_queries + 1))
        num_pages = -(-(start + num_queries) // PAGE_TOKENS)
        pages = rng.integers(0, 1000, num_pages).astype(np.int32)
        tokens = tuple(rng.integers(0, 99, num_queries).tolist())
        slices.append(SequenceSlice(start, tokens, pages.tobytes(), i > 0))
    return StepArrays.build(slices, PAGE_TOKENS)


def test_a_mixed_step_arrives_whole_and_aligned() -> None:
    arrays = step(np.random.default_rng(0), [1, 1, 7, 1, 3])
    upload = StepUpload(CPU)
    upload.send(step(np.random.default_rng(1), [20, 20]))  # an earlier and larger one
    sent = upload.send(arrays)
    [inputs] = sent.inputs
    for got, wanted in (
        (sent.token_ids, arrays.token_ids),
        (sent.sample_rows, arrays.sample_rows),
        (inputs.positions, arrays.positions),
        (inputs.slots, arrays.slots),
        (inputs.query_starts, arrays.query_starts),
        (inputs.kv_lens, arrays.kv_lens),
        (inputs.page_table, arrays.page_table),
    ):
        np.testing.assert_array_equal(got.numpy(), wanted)
        assert got.storage_offset() % ALIGNED_INTS == 0
    assert (inputs.num_decodes, inputs.max_query_len, inputs.max_kv_len) == (2, 7, arrays.kv_lens.max())


def test_steps_already_sent_stay_as_they_are() -> None:
    upload = StepUpload(CPU)
    first, second = (step(np.random.default_rng(seed), [3, 1]) for seed in (0, 1))
    sent = upload.send(first)
    upload.send(second)
    np.testing.assert_array_equal(sent.token_ids.numpy(), first.token_ids)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, MAX_SEQS), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_static_memory_holds_exactly_the_step_that_was_loaded_last(batches: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = DecodeInputs(MAX_SEQS, MAX_PAGES, CPU)
    addresses = [memory.token_ids(1).data_ptr(), memory.inputs(1, 8)[0].page_table.data_ptr()]
    for num_seqs in batches:
        arrays = step(rng, [1] * num_seqs)
        num_rows = int(rng.integers(num_seqs, MAX_SEQS + 1))
        memory.load(arrays, num_rows)
        [inputs] = memory.inputs(num_rows, max_kv_len=24)
        padding = num_rows - num_seqs
        assert memory.token_ids(num_rows).tolist() == [*arrays.token_ids, *[0] * padding]
        assert inputs.positions.tolist() == [*arrays.positions, *[0] * padding]
        assert inputs.slots.tolist() == [*arrays.slots, *[PAD_SLOT] * padding]
        assert inputs.kv_lens.tolist() == [*arrays.kv_lens, *[0] * padding]
        assert inputs.query_starts.tolist() == list(range(num_rows + 1))
        assert (inputs.num_decodes, inputs.max_query_len, inputs.max_kv_len) == (num_rows, 1, 24)
        for row, kv_len in enumerate(arrays.kv_lens):
            used = -(-int(kv_len) // PAGE_TOKENS)
            np.testing.assert_array_equal(inputs.page_table[row, :used].numpy(), arrays.page_table[row, :used])
    assert addresses == [memory.token_ids(1).data_ptr(), memory.inputs(1, 8)[0].page_table.data_ptr()]
