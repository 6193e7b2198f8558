"""What the router believes that one worker's prefix cache holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.registry.worker_registry import WorkerState


class BlockEventError(Exception):
    """A worker's report about its blocks cannot be true."""


@dataclass(slots=True, eq=False)
class Holder:
    """The known blocks of one worker. `bit` stands for the worker in the index's sets of workers. A block is either
    `held` (the worker said so) or `expected` (a request that will produce it was placed there, which counts until the
    given time), never both."""

    worker: WorkerState
    bit: int
    held: set[int] = field(default_factory=set)
    expected: dict[int, float] = field(default_factory=dict)
    last_seq: int = 0
    awaits_snapshot: bool = False

    @property
    def num_entries(self) -> int:
        return len(self.held) + len(self.expected)

    def follow(self, seq: int, is_snapshot: bool) -> bool:
        """Notes the number of a message. Returns whether the router has to ask for a snapshot.

        Raises BlockEventError if the number does not go forward.
        """
        if seq <= self.last_seq:
            raise BlockEventError(f"BlocksChanged.seq {seq} came after {self.last_seq}")
        has_gap = seq != self.last_seq + 1
        self.last_seq = seq
        if is_snapshot:
            self.awaits_snapshot = False
        elif has_gap and not self.awaits_snapshot:
            self.awaits_snapshot = True
            return True
        return False
