"""The native copy against numpy and xxhash: any table, any ids, any size, in both builds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slipstream.kv_transfer.api.page_transport import MessagePages
from slipstream.kv_transfer.memory import row_copy
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.page_pull import PagePull, pull_pages, sum_pages
from slipstream.kv_transfer.memory.row_copy import MIN_BYTES, NEEDED_FLAGS, CopyRows, RowCopy, RowTable, copy_rows

NUM_ROWS = 20


def native(variant: str) -> CopyRows:
    try:
        return row_copy.open_native(variant)
    except OSError as error:
        pytest.skip(f"not built here: {error}")


def runnable() -> list[str]:
    flags = row_copy._processor_flags()
    return [variant for variant, needed in NEEDED_FLAGS.items() if needed <= flags]


@pytest.mark.parametrize("variant", runnable())
@settings(max_examples=150, deadline=None)
@given(
    row_bytes=st.one_of(st.integers(1, 3000), st.sampled_from([64, 960, 1024, 1088, 2048, 4096])),
    gap=st.sampled_from([0, 64, 7]),
    ids=st.permutations(range(NUM_ROWS)),
    num_runs=st.integers(1, NUM_ROWS),
    seed=st.integers(0, 2**64 - 1),
    way=st.sampled_from(["look", "cached", "past caches"]),
)
def test_rows_are_copied_and_summed_like_by_numpy_and_xxhash(
    variant: str, row_bytes: int, gap: int, ids: list[int], num_runs: int, seed: int, way: str
) -> None:
    assume(row_bytes * num_runs >= MIN_BYTES)
    stride = row_bytes + gap
    generator = np.random.default_rng(row_bytes)
    source = generator.integers(0, 256, (NUM_ROWS, stride), np.uint8)
    to = np.zeros((NUM_ROWS, stride), np.uint8)
    source_ids = np.array(ids[:num_runs], np.int64)
    to_ids = np.array(ids[::-1][:num_runs], np.int64)
    table = RowTable(source, source.ctypes.data, NUM_ROWS, row_bytes, stride)
    to_table = None if way == "look" else RowTable(to, to.ctypes.data, NUM_ROWS, row_bytes, stride)
    copy = RowCopy(to_table, to_ids, table, source_ids, num_runs, seed, way == "past caches")
    expected = source[source_ids, :row_bytes]
    assert copy_rows(native(variant), [copy]) == [xxhash.xxh3_64_intdigest(expected.tobytes(), seed=seed)]
    after = np.zeros_like(to)
    if way != "look":
        after[to_ids, :row_bytes] = expected
    assert (to == after).all()


@pytest.mark.parametrize("variant", runnable())
@pytest.mark.parametrize("bad", [-1, NUM_ROWS])
def test_a_copy_of_rows_that_are_not_there_touches_nothing_and_the_others_are_made(variant: str, bad: int) -> None:
    source, to = np.full((NUM_ROWS, 512), 5, np.uint8), np.zeros((NUM_ROWS, 512), np.uint8)
    good_ids, bad_ids = np.array([3], np.int64), np.array([2, bad], np.int64)
    from_table, to_table = RowTable.of_buffer(source.reshape(-1), 512), RowTable.of_buffer(to.reshape(-1), 512)
    copies = [
        RowCopy(to_table, bad_ids, from_table, None, 2, 0),
        RowCopy(to_table, None, from_table, bad_ids, 2, 0),
        RowCopy(to_table, good_ids, from_table, good_ids, 1, 0),
    ]
    checksums = copy_rows(native(variant), copies)
    assert checksums[:2] == [None, None]
    assert checksums[2] == xxhash.xxh3_64_intdigest(source[3].tobytes())
    assert to[3].all()
    assert not np.delete(to, 3, 0).any()


@pytest.mark.parametrize("page_bytes", [16, 2048])
@pytest.mark.parametrize("has_native", [True, False])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_pulling_gives_the_sum_that_the_source_has_made(
    page_bytes: int, has_native: bool, num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_native:
        monkeypatch.setattr("slipstream.kv_transfer.memory.host_pages.native_copy_rows", lambda: None)
    shape = (3, 10, 4, page_bytes)
    generator = np.random.default_rng(0)
    source = HostPagePool(generator.integers(0, 256, shape, np.uint8))
    array = np.zeros((3, 12, 2, page_bytes), np.uint8)
    pool = HostPagePool(array)
    ids, source_ids = np.array([11, 0, 4], np.int64), np.array([1, 9, 2], np.int64)
    [checksum] = sum_pages(source, [MessagePages(1, source_ids, range(2, 4), 77, num_layers)])
    pull = PagePull(MessagePages(1, ids, range(2), 77, num_layers), source, source_ids, range(2, 4))
    assert pull_pages(pool, [pull]) == [checksum]
    expected = np.zeros_like(array)
    gathered = np.empty((num_layers, math.prod((3, 2, page_bytes))), np.uint8)
    for layer, some in enumerate(gathered, 1):
        source.gather(layer, source_ids, range(2, 4), some)
        expected[layer, ids] = some.reshape(3, 2, page_bytes)
    assert checksum == xxhash.xxh3_64_intdigest(gathered.tobytes(), seed=77)
    assert (array == expected).all()
    beyond = np.array([1, 10 * num_layers, 2], np.int64)
    assert pull_pages(pool, [PagePull(pull.pages, source, beyond, range(2, 4))]) == [None]


def test_without_a_build_there_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(row_copy, "FOLDER", tmp_path)
    row_copy.native_copy_rows.cache_clear()
    try:
        assert [row_copy.native_copy_rows() for _ in range(2)] == [None, None]
        assert [record.message.split("(")[0] for record in caplog.records] == ["no native page copy "]
    finally:
        row_copy.native_copy_rows.cache_clear()
