"""Sums over a rank's own pages, and pages pulled out of another rank's pool: several in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.kv_transfer.page_transport import Pages
from slipstream.kv_transfer.pool import HostPagePool, HostPages, PageIds
from slipstream.kv_transfer.row_copy import MIN_BYTES, RowCopy, copy_rows


@dataclass(frozen=True, slots=True)
class PagePull:
    """`pages` of this rank's pool are to hold `source_heads` of `source_ids` of `source`, in the same layer."""

    pages: Pages
    source: HostPages
    source_ids: PageIds
    source_heads: range


def sum_pages(pool: HostPages, several: Sequence[Pages]) -> list[int]:
    """The checksum of each."""
    if pool.copy is None or any(_num_bytes(pool, pages) < MIN_BYTES for pages in several):
        return [_sum_by_numpy(pool, pages) for pages in several]
    copies = [RowCopy(None, None, pool.table(p.layer, p.heads), p.page_ids, len(p.page_ids), p.seed) for p in several]
    checksums = copy_rows(pool.copy, copies)
    return [_known(checksum) for checksum in checksums]


def pull_pages(pool: HostPagePool, pulls: Sequence[PagePull]) -> list[int | None]:
    """Copies, and returns the checksum of what was found at each source; None where it names pages it does not have."""
    if pool.copy is None or any(_num_bytes(pool, pull.pages) < MIN_BYTES for pull in pulls):
        return [_pull_by_numpy(pool, pull) for pull in pulls]
    return copy_rows(pool.copy, [as_row_copy(pool, pull) for pull in pulls])


def as_row_copy(pool: HostPagePool, pull: PagePull) -> RowCopy:
    pages = pull.pages
    to, source = pool.table(pages.layer, pages.heads), pull.source.table(pages.layer, pull.source_heads)
    return RowCopy(to, pages.page_ids, source, pull.source_ids, len(pages.page_ids), pages.seed, past_caches=True)


def _sum_by_numpy(pool: HostPages, pages: Pages) -> int:
    out = np.empty(_num_bytes(pool, pages), np.uint8)
    return pool.gather_summed(pages.layer, pages.page_ids, pages.heads, out, pages.seed)


def _pull_by_numpy(pool: HostPagePool, pull: PagePull) -> int | None:
    pages, ids = pull.pages, pull.source_ids
    if not 0 <= ids.min() <= ids.max() < pull.source.geometry.num_pages:
        return None
    found = np.empty(_num_bytes(pool, pages), np.uint8)
    pull.source.gather(pages.layer, ids, pull.source_heads, found)
    return pool.scatter_summed(pages.layer, pages.page_ids, pages.heads, found, pages.seed)


def _num_bytes(pool: HostPages, pages: Pages) -> int:
    return len(pages.page_ids) * len(pages.heads) * pool.geometry.head_bytes


def _known(checksum: int | None) -> int:
    assert checksum is not None, "a rank's own page ids are checked where they come in"
    return checksum
