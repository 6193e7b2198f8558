#!/usr/bin/env python3
"""What the processor gives: the copying and summing of scattered KV pages without anything around it.

    python scripts/bench/kv_transfer/bench_kv_copy.py [--repeats 15] [--page-kib 16]

32 MiB of a pool of 64 MiB, 1 MiB a message, to a pool that was overwritten before; GB/s, medians. The last line is the
ceiling of a transfer through shared memory between two threads: one sums up, the other copies, both at once. Each line
comes twice: for shared memory as the kernel gives it, by default in pages of 4 KiB, and in huge pages, as in a pool.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from slipstream.kv_transfer.api.page_transport import MessagePages
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.huge_pages import num_huge_bytes
from slipstream.kv_transfer.memory.page_pull import PagePull, pull_pages, sum_pages
from slipstream.kv_transfer.memory.pool_memory import PoolMemory

MIB = 1 << 20
TOTAL_BYTES, MESSAGE_BYTES = 32 * MIB, MIB
HEADS = range(1)


class Side:
    """A pool of one layer with twice the pages, and those that take part, by message."""

    def __init__(self, page_bytes: int, seed: int, is_huge: bool) -> None:
        shape = (1, 2 * TOTAL_BYTES // page_bytes, 1, page_bytes)
        memory = PoolMemory(math.prod(shape))
        if is_huge:
            memory.take()
        self.num_huge_bytes = num_huge_bytes(memory.buffer)
        self.array = memory.buffer.reshape(shape)
        generator = np.random.default_rng(seed)
        self.array.reshape(-1).view(np.uint64)[:] = generator.integers(0, 1 << 64, self.array.size // 8, np.uint64)
        self.pool = HostPagePool(self.array)
        ids = generator.permutation(shape[1])[: TOTAL_BYTES // page_bytes].astype(np.int64)
        self.messages = [MessagePages(0, some, HEADS, 1) for some in np.split(ids, TOTAL_BYTES // MESSAGE_BYTES)]


def plain(source: Side, to: Side) -> None:
    rows, to_rows = source.array[0, :, 0], to.array[0, :, 0]
    for theirs, ours in zip(source.messages, to.messages, strict=True):
        for page, our_page in zip(theirs.page_ids, ours.page_ids, strict=True):
            to_rows[our_page] = rows[page]


def sums(source: Side, to: Side) -> None:
    for pages in source.messages:
        sum_pages(source.pool, [pages])


def pulls(source: Side, to: Side) -> None:
    for theirs, ours in zip(source.messages, to.messages, strict=True):
        pull_pages(to.pool, [PagePull(ours, source.pool, theirs.page_ids, HEADS)])


def both(source: Side, to: Side) -> None:
    summing = threading.Thread(target=sums, args=(source, to))
    summing.start()
    pulls(source, to)
    summing.join()


WAYS: dict[str, Callable[[Side, Side], None]] = {
    "plain copies, page by page": plain,
    "sums": sums,
    "copies with sums": pulls,
    "sums and copies with sums, at once": both,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--page-kib", type=int, default=16)
    options = parser.parse_args()
    for is_huge in (False, True):
        source, to = (Side(options.page_kib << 10, seed, is_huge) for seed in (1, 2))
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.repeats):
            for way, run in WAYS.items():
                to.array[:] = 0
                began = time.perf_counter()
                run(source, to)
                rates[way].append(TOTAL_BYTES / 1e9 / (time.perf_counter() - began))
        for way, found in rates.items():
            memory = f"{source.num_huge_bytes // MIB} MiB huge"
            print(f"{memory:12}  {way:36}{statistics.median(found):6.2f} GB/s ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
