"""Requests that have ended and that another one may go on from.

A conversation is known by its content: the next request of it begins with the blocks of the prompt before. So it needs
no name, and what cannot find cached pages again is not taken for its continuation either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import PeerId

MAX_PAUSED = 16_384
MAX_NEW_BLOCKS = 4096  # of a prompt, that are looked through for the end of the one before it
NUM_ENDS = 2  # the last blocks of a prompt by which it is known: the next turn may render the very last one anew
GONE_S = 900.0  # a conversation that has not come back by then counts as gone


@dataclass(slots=True)
class PausedSession:
    """One ended request. `tool` is None until it is known how its answer ended; `peers` have its pages."""

    request_id: str
    tenant: str
    num_tokens: int
    ended_s: float
    peers: tuple[PeerId, ...]
    blocks: tuple[int, ...]
    tool: str | None = None


class PausedSessions:
    """Sans-IO. Of two requests with the same last block, the later one is found."""

    def __init__(self, capacity: int = MAX_PAUSED) -> None:
        self._capacity = capacity
        self._sessions: OrderedDict[str, PausedSession] = OrderedDict()  # in the order in which they ended
        self._by_block: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, request_id: str) -> PausedSession | None:
        return self._sessions.get(request_id)

    def add(self, session: PausedSession) -> None:
        self._remove(session.request_id)
        self._sessions[session.request_id] = session
        for block in session.blocks:
            self._by_block[block] = session.request_id
        if len(self._sessions) > self._capacity:
            self._remove(next(iter(self._sessions)))

    def take(self, blocks: Sequence[int]) -> PausedSession | None:
        """The one that a prompt of these blocks goes on from, which is paused no longer."""
        by_block = self._by_block
        if not by_block:
            return None
        for at in range(len(blocks) - 1, max(len(blocks) - 1 - MAX_NEW_BLOCKS, -1), -1):
            request_id = by_block.get(blocks[at])
            if request_id is not None:
                return self._remove(request_id)
        return None

    def expire(self, now: float) -> list[PausedSession]:
        """Those that have not come back, and are paused no longer."""
        gone = []
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if session.ended_s + GONE_S > now:
                break
            self._remove(session.request_id)
            gone.append(session)
        return gone

    def _remove(self, request_id: str) -> PausedSession | None:
        session = self._sessions.pop(request_id, None)
        if session is not None:
            for block in session.blocks:
                if self._by_block.get(block) == request_id:
                    del self._by_block[block]
        return session
