"""Which workers hold which blocks: one number for each block, with one bit for each worker.

So the workers with the longest hits for a prompt are found by walking its block ids once, whatever the number of
workers. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, repeat

STRETCH = 64  # blocks that are looked up by the last of them, where that is held by all that hold what is before


class BlockMap:
    def __init__(self) -> None:
        self._masks: dict[int, int] = {}  # block id -> bits of the workers that hold it, never 0
        self.version = 0  # incremented by every change

    def __len__(self) -> int:
        return len(self._masks)

    def add(self, blocks: Sequence[int], bit: int) -> None:
        """The worker holds these blocks, some of them perhaps since before."""
        masks = self._masks
        if masks.keys().isdisjoint(blocks):
            masks.update(dict.fromkeys(blocks, bit))
        else:
            for block in blocks:
                masks[block] = masks.get(block, 0) | bit
        self.version += 1

    def remove(self, blocks: Iterable[int], bit: int) -> None:
        """The worker no longer holds these blocks. It must hold all of them, and no block may be named twice."""
        masks = self._masks
        for block in blocks:
            if masks[block] == bit:
                del masks[block]
            else:
                masks[block] ^= bit
        self.version += 1

    def hits(self, ids: Sequence[int], num_ids: int, workers: int) -> list[tuple[int, int]]:
        """For the first `num_ids` blocks of a chain, and the workers whose bits are set in `workers`: pairs of a number
        of leading blocks and the bits of the workers that hold exactly so many of them, most blocks first. Workers that
        hold none are left out."""
        hits: list[tuple[int, int]] = []
        num_blocks, mask, masks = 0, workers, self._masks
        while mask and num_blocks < num_ids:
            end = num_blocks + STRETCH
            # Caches evict the ends of prefixes first: a worker with the last block of a stretch has those before it.
            if end <= num_ids and masks.get(ids[end - 1], 0) & mask == mask:
                num_blocks = end
                continue
            # Neighbours have the same holders as a rule, so a stretch is few groups.
            for holders, group in groupby(map(masks.get, ids[num_blocks : min(end, num_ids)], repeat(0))):
                also = mask & holders
                if also != mask:
                    if num_blocks:
                        hits.append((num_blocks, mask ^ also))
                    mask = also
                    if not mask:
                        break
                num_blocks += len(list(group))
        if mask and num_blocks:
            hits.append((num_blocks, mask))
        hits.reverse()
        return hits

    def last_hits(self, ids: Sequence[int], num_ids: int, workers: int) -> list[tuple[int, int]]:
        """As `hits`, for workers of which a block stands for all before it: the number of leading blocks up to the last
        one that a worker holds."""
        masks = self._masks
        hits: list[tuple[int, int]] = []
        for at in range(num_ids - 1, -1, -1):
            mask = masks.get(ids[at], 0) & workers
            if mask:
                hits.append((at + 1, mask))
                workers ^= mask
                if not workers:
                    break
        return hits

    def check_integrity(self, holders: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Raises AssertionError if the map does not hold what `holders`, pairs of a bit and its blocks, say. Slow."""
        masks: dict[int, int] = {}
        for bit, blocks in holders:
            for block in blocks:
                masks[block] = masks.get(block, 0) | bit
        assert masks == self._masks
