"""What a simulated worker has to tell its router."""

from __future__ import annotations

from slipstream.router.protocol.block_hash import pack_block_ids
from slipstream.router.protocol.messages import BlocksChanged, Credits, WorkerMessage
from slipstream.workers.engine.kv_cache.cache_changes import CacheChanges

Capacity = tuple[int, int, int, int]  # the fields of `Credits`


class Outbox:
    """Messages, and beside them what is news of credits and of the prefix cache."""

    __slots__ = ("_blocks_seq", "_changes", "_free", "_out")

    def __init__(self, changes: CacheChanges) -> None:
        self._changes = changes
        self._out: list[WorkerMessage] = []
        self._blocks_seq = 0
        self._free: Capacity = (-1, -1, -1, -1)

    def add(self, message: WorkerMessage) -> None:
        self._out.append(message)

    def add_first(self, message: WorkerMessage) -> None:
        """What the others follow from."""
        self._out.insert(0, message)

    def take(self, free: Capacity, tells_less: bool) -> list[WorkerMessage]:
        """All of it. Credits that have only become fewer are no news: what took them the router has sent, but for the
        growth of answers, with which they are told (`tells_less`)."""
        out, changes = self._out, self._changes
        before, self._free = self._free, free
        if (tells_less and free != before) or free[1] > before[1] or free[2] > before[2] or free[3] > before[3]:
            out.append(Credits(*free))
        if changes:
            stored, removed = changes.take()
            self._blocks_seq += 1
            out.append(BlocksChanged(self._blocks_seq, False, pack_block_ids(stored), pack_block_ids(removed)))
        if out:
            self._out = []
        return out
