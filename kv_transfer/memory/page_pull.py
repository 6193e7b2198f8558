"""Computes checksums of a rank's own pages, and pulls pages out of another rank's pool, several in one call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from slipstream.kv_transfer.api.page_layout import PageIds
from slipstream.kv_transfer.api.page_transport import MessagePages
from slipstream.kv_transfer.memory.host_pages import HostPagePool, HostPages
from slipstream.kv_transfer.memory.row_copy import MIN_BYTES, RowCopy, copy_rows

# How much to do in one call. Copying sweeps the caches, so Python's work is cheaper if it is done for several messages
# at once; but the other end waits for the first of them.
BATCH_BYTES = 4 << 20

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class PagePull:
    """A copy to make: `source_heads` of the pages `source_ids` of `source` into `pages` of this rank's pool, in the
    same layers."""

    pages: MessagePages
    source: HostPages
    source_ids: PageIds
    source_heads: range


def take_batch(pool: HostPages, waiting: deque[Item], pages_of: Callable[[Item], MessagePages]) -> list[Item]:
    """Takes the first of the waiting items, as many as belong in one call."""
    batch: list[Item] = []
    left = BATCH_BYTES
    while waiting and left > 0:
        batch.append(waiting.popleft())
        left -= _num_bytes(pool, pages_of(batch[-1]))
    return batch


def sum_pages(pool: HostPages, several: Sequence[MessagePages]) -> list[int]:
    """The checksum of each item."""
    if pool.copy is None or any(_num_bytes(pool, pages) < MIN_BYTES for pages in several):
        return [_sum_by_numpy(pool, pages) for pages in several]
    checksums = copy_rows(pool.copy, [_as_sum(pool, pages) for pages in several])
    return [_known(checksum) for checksum in checksums]


def pull_pages(pool: HostPagePool, pulls: Sequence[PagePull]) -> list[int | None]:
    """Makes the copies, and returns the checksum of what was found at each source; None for a source that names pages
    which it does not have."""
    if pool.copy is None or any(_num_bytes(pool, pull.pages) < MIN_BYTES for pull in pulls):
        return [_pull_by_numpy(pool, pull) for pull in pulls]
    return copy_rows(pool.copy, [_as_copy(pool, pull) for pull in pulls])


def _as_sum(pool: HostPages, pages: MessagePages) -> RowCopy:
    table, ids = pool.rows(pages.layer, pages.num_layers, pages.page_ids, pages.heads)
    return RowCopy(None, None, table, ids, len(ids), pages.seed)


def _as_copy(pool: HostPagePool, pull: PagePull) -> RowCopy:
    pages = pull.pages
    to, ids = pool.rows(pages.layer, pages.num_layers, pages.page_ids, pages.heads)
    source, source_ids = pull.source.rows(pages.layer, pages.num_layers, pull.source_ids, pull.source_heads)
    return RowCopy(to, ids, source, source_ids, len(ids), pages.seed, past_caches=True)


def _sum_by_numpy(pool: HostPages, pages: MessagePages) -> int:
    return _checksum(_gather(pool, pages, pages.page_ids, pages.heads), pages.seed)


def _pull_by_numpy(pool: HostPagePool, pull: PagePull) -> int | None:
    pages, ids = pull.pages, pull.source_ids
    if not 0 <= ids.min() <= ids.max() < pull.source.geometry.num_pages:
        return None
    found = _gather(pull.source, pages, ids, pull.source_heads)
    for layer, some in enumerate(found, pages.layer):
        pool.scatter(layer, pages.page_ids, pages.heads, some)
    return _checksum(found, pages.seed)


def _gather(pool: HostPages, pages: MessagePages, page_ids: PageIds, heads: range) -> npt.NDArray[np.uint8]:
    """The pages' bytes as [layers, bytes of one layer]."""
    found = np.empty((pages.num_layers, len(page_ids) * len(heads) * pool.geometry.head_bytes), np.uint8)
    for layer, out in enumerate(found, pages.layer):
        pool.gather(layer, page_ids, heads, out)
    return found


def _checksum(found: npt.NDArray[np.uint8], seed: int) -> int:
    return xxhash.xxh3_64_intdigest(found.data, seed=seed)


def _num_bytes(pool: HostPages, pages: MessagePages) -> int:
    return pages.num_layers * len(pages.page_ids) * len(pages.heads) * pool.geometry.head_bytes


def _known(checksum: int | None) -> int:
    assert checksum is not None, "a rank's own page ids are checked where they come in"
    return checksum
