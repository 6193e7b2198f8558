"""What a simulated worker has to tell its router."""

from __future__ import annotations

from slipstream.router.protocol.block_hash import pack_block_ids
from slipstream.router.protocol.messages import BlocksChanged, Credits, StepTimes, WorkerMessage
from slipstream.workers.interface.cache_changes import CacheChanges


class Outbox:
    """Messages, and beside them what is news of credits and of the prefix cache. Step times come after the others."""

    __slots__ = ("_blocks_seq", "_changes", "_credits", "_out", "_step_times")

    def __init__(self, changes: CacheChanges) -> None:
        self._changes = changes
        self._out: list[WorkerMessage] = []
        self._step_times: list[StepTimes] = []
        self._blocks_seq = 0
        self._credits = Credits(-1, -1, -1, -1)

    def add(self, message: WorkerMessage) -> None:
        self._out.append(message)

    def add_first(self, message: WorkerMessage) -> None:
        """The others follow from this one."""
        self._out.insert(0, message)

    def add_last(self, step_times: StepTimes) -> None:
        self._step_times.append(step_times)

    def take(self, credits: Credits, tells_less: bool) -> list[WorkerMessage]:
        """All of it. Credits that have only become fewer are no news: the router has sent what took them, except for
        the growth of answers, with which they are told (`tells_less`)."""
        out, changes = self._out, self._changes
        before, self._credits = self._credits, credits
        if self._step_times:
            out += self._step_times
            self._step_times.clear()
        if (
            (tells_less and credits != before)
            or credits.free_slots > before.free_slots
            or credits.free_pages > before.free_pages
            or credits.free_tokens > before.free_tokens
        ):
            out.append(credits)
        if changes:
            stored, removed = changes.take()
            self._blocks_seq += 1
            out.append(BlocksChanged(self._blocks_seq, False, pack_block_ids(stored), pack_block_ids(removed)))
        if out:
            self._out = []
        return out
