"""The batch sizes for which decode steps are recorded."""

from __future__ import annotations

from bisect import bisect_left

SMALLEST_HALVED = 16  # from here on, there is another size between a power of two and the next


def batch_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Ascending sizes up to `max_num_seqs`, itself included: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ...

    Powers of two alone would compute up to half of a batch for nothing; a third is the most that these do, from 16 on.
    """
    sizes = {max_num_seqs}
    size = 1
    while size < max_num_seqs:
        sizes.add(size)
        if size >= SMALLEST_HALVED:
            sizes.add(size + size // 2)
        size *= 2
    return tuple(sorted(s for s in sizes if s <= max_num_seqs))


def bucket_for(buckets: tuple[int, ...], num_seqs: int) -> int | None:
    """The smallest of the ascending `buckets` that holds `num_seqs`; None if none does."""
    at = bisect_left(buckets, num_seqs)
    return buckets[at] if at < len(buckets) else None
