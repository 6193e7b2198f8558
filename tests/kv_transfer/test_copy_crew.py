"""A crew's copies are those that its owner would have made alone, whoever makes them."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kv_transfer.copy_crew import NUM_SLOTS, CopyCrew, CrewLibrary
from slipstream.kv_transfer.row_copy import RowCopy, Table, usable_variants

NUM_ROWS, ROW_BYTES = 64, 4096
BELL_S = 20.0

generator = np.random.default_rng(0)
SOURCE = generator.integers(0, 256, (NUM_ROWS, ROW_BYTES), np.uint8)


def library(variant: str) -> CrewLibrary:
    try:
        return CrewLibrary(variant)
    except (OSError, AttributeError) as error:
        pytest.skip(f"not built here: {error}")


@pytest.fixture
def bell() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


def a_copy(to: np.ndarray, row: int, seed: int = 0) -> RowCopy:
    ids = np.array([row], np.int64)
    return RowCopy(table(to), ids, table(SOURCE), ids, 1, seed, past_caches=True)


def table(rows: np.ndarray) -> Table:
    return Table(rows, rows.ctypes.data, NUM_ROWS, ROW_BYTES, ROW_BYTES)


def checksum(row: int, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(SOURCE[row].tobytes(), seed=seed)


@pytest.mark.parametrize("variant", usable_variants())
@settings(max_examples=50, deadline=None)
@given(
    has_helper=st.booleans(),
    batches=st.lists(st.tuples(st.lists(st.integers(0, NUM_ROWS - 1), max_size=20), st.integers(0, 8)), max_size=12),
)
def test_checksums_come_back_in_order_and_rows_are_in_place(
    variant: str, has_helper: bool, batches: list[tuple[list[int], int]]
) -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    crew = CopyCrew(library(variant), fd, has_helper=has_helper)
    to = np.zeros_like(SOURCE)
    found: list[int | None] = []
    handed_in: list[RowCopy] = []
    rows = [row for batch, _ in batches for row in batch]
    for batch, max_own in batches:
        while len(handed_in) - len(found) + len(batch) > NUM_SLOTS:
            found += crew.work([], 1)
        copies = [a_copy(to, row, row) for row in batch]
        handed_in += copies
        found += crew.work(copies, max_own)
    while len(found) < len(handed_in):
        found += crew.work([], 1)
    crew.close()
    os.close(fd)
    assert found == [checksum(row, row) for row in rows]
    expected = np.zeros_like(SOURCE)
    expected[rows] = SOURCE[rows]
    assert (to == expected).all()


@pytest.mark.parametrize("variant", usable_variants())
def test_the_bell_tells_of_what_the_helper_has_kept_the_owner_waiting_for(variant: str, bell: int) -> None:
    """The owner sleeps whenever nothing is left to begin; without the bell it would never wake."""
    crew = CopyCrew(library(variant), bell)
    to = np.zeros_like(SOURCE)
    for _ in range(200):
        copies = [a_copy(to, row) for row in range(8)]
        found = crew.work(copies, 1)
        while len(found) < len(copies):
            more = crew.work([], 1)
            found += more
            if not more and not crew.num_left:
                assert select.select([bell], [], [], BELL_S)[0], "nobody rings"
                os.eventfd_read(bell)
        assert found == [checksum(row) for row in range(8)]
    crew.close()


@pytest.mark.parametrize("has_helper", [True, False])
@pytest.mark.parametrize("variant", usable_variants())
def test_nobody_copies_what_was_dropped_and_the_crew_goes_on(variant: str, has_helper: bool, bell: int) -> None:
    crew = CopyCrew(library(variant), bell, has_helper=has_helper)
    to = np.zeros_like(SOURCE)
    for _ in range(200):
        copies = [a_copy(to, row) for row in range(32)]
        crew.work(copies, 0)
        crew.drop_all()
        to[:] = 0
        later = a_copy(to, NUM_ROWS - 1)
        assert crew.work([later], 1) == [checksum(NUM_ROWS - 1)]
        assert not to[:-1].any()
    crew.close()


@pytest.mark.parametrize("variant", usable_variants())
def test_a_copy_of_rows_that_are_not_there_has_no_checksum_and_the_others_are_made(variant: str, bell: int) -> None:
    crew = CopyCrew(library(variant), bell)
    to = np.zeros_like(SOURCE)
    copies = [a_copy(to, 3), a_copy(to, NUM_ROWS), a_copy(to, 5)]
    found = crew.work(copies, 3)
    while len(found) < 3:
        found += crew.work([], 3)
    assert found == [checksum(3), None, checksum(5)]
    crew.close()
