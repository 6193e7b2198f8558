"""Tells the router which pages the prefix cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.router.protocol.block_hash import pack_block_ids
from slipstream.router.protocol.messages import BlocksChanged
from slipstream.workers.interface.engine import BlockSource

# Changes are reported together, at most this often: one message costs the router as much as 100 blocks do.
INTERVAL_S = 0.005
# A snapshot is sent in parts, so that no single message holds up the router for long.
MAX_BLOCKS_A_MESSAGE = 4096


@dataclass(slots=True)
class BlockEvents:
    """Numbers and bounds the messages about one prefix cache. No clock: times are seconds of any monotonic one.

    A connection begins with a snapshot if the cache holds something; another one goes out when the router asks, or
    when there were too many changes to remember.
    """

    source: BlockSource
    _last_seq: int = 0
    _wants_snapshot: bool = True
    _next_s: float = float("-inf")

    def start_over(self) -> None:
        """A new connection has begun, on which the router knows nothing yet."""
        self._last_seq = 0
        self._wants_snapshot = True

    def resync(self) -> None:
        """The router has missed a message and needs a snapshot."""
        self._wants_snapshot = True

    def due(self, now_s: float) -> Sequence[BlocksChanged]:
        """The messages that are to be sent now."""
        if not self.source.changes and not self._wants_snapshot:
            return ()
        if now_s < self._next_s:
            return ()
        self._next_s = now_s + INTERVAL_S
        if self._wants_snapshot or self.source.changes.are_too_many:
            return self._snapshot()
        stored, removed = self.source.changes.take()
        return self._parts(stored, removed, is_snapshot=False)

    def next_due_s(self) -> float | None:
        """When `due` will next have something to send; None: not before the next change."""
        return self._next_s if self.source.changes or self._wants_snapshot else None

    def _snapshot(self) -> Sequence[BlocksChanged]:
        self.source.changes.take()  # they are part of the snapshot
        self._wants_snapshot = False
        digests = list(self.source.digests())
        if not digests and self._last_seq == 0:
            return ()  # the router assumes an empty cache anyway
        return self._parts(digests, [], is_snapshot=True)

    def _parts(self, stored: list[bytes], removed: list[bytes], *, is_snapshot: bool) -> Sequence[BlocksChanged]:
        """The messages with these changes; removals come first, so that the router never counts too many pages."""
        size = MAX_BLOCKS_A_MESSAGE
        parts = [(b"", pack_block_ids(removed[at : at + size])) for at in range(0, len(removed), size)]
        parts += [(pack_block_ids(stored[at : at + size]), b"") for at in range(0, len(stored), size)]
        if len(stored) + len(removed) <= size:
            parts = [(pack_block_ids(stored), pack_block_ids(removed))]
        messages = []
        for at, (of_stored, of_removed) in enumerate(parts):
            self._last_seq += 1
            messages.append(BlocksChanged(self._last_seq, is_snapshot and at == 0, of_stored, of_removed))
        return messages
