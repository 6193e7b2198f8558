"""One attempt on a simulated worker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from slipstream.cluster.tools.sim.engine.page_names import PageNames
from slipstream.cluster.tools.sim.hardware.network import Nic
from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import FinishReason, Hello, RetentionHint, TokenChunk
from slipstream.workers.mock.mock_pages import Lease

Key = tuple[str, int]  # (request_id, attempt)

TOKENS = (7,) * 1024  # of every answer


class AttemptState(IntEnum):
    RESERVED = 0  # pages are taken; they, and the first token, are on their way
    QUEUED = 1  # its prompt is to be computed here
    SENDING = 2  # its pages are on their way out
    DECODING = 3
    STOPPED = 4  # it is out of the batch, between two steps: it will be frozen, or decode on
    FROZEN = 5  # it stands still: it goes on elsewhere, or here if that fails
    GONE = 6


class Peer(Protocol):
    """The worker at the other end of a hand-off."""

    hello: Hello
    nic: Nic
    is_alive: bool

    def landed(self, ticket: HandoffTicket, seconds: float) -> None:
        """All pages of a ticket came, `seconds` after the first of them left."""


@dataclass(slots=True, eq=False)
class SimAttempt:
    """`num_known` are the tokens that it has to have computed, `num_given` those of them that are output of before.
    `stop_at` is the length of its whole answer, `num_reported` how much of that the router knows. `joined_step` is when
    it began to decode, counted in steps; `*_base` are its tokens and its output then.

    `is_adopted`: it has decoded elsewhere; `num_landed_pages` of it are here, and `is_whole` says that its ticket is
    for the last of them."""

    request_id: str
    attempt: int
    state: AttemptState
    num_known: int
    num_given: int
    num_reported: int
    stop_at: int
    lease: Lease[PageNames] | None
    names: PageNames | None
    num_uncomputed: int = 0
    num_cached: int = 0
    retention: RetentionHint | None = None
    has_begun: bool = False
    has_landed: bool = False
    has_started: bool = False
    ticket: HandoffTicket | None = None
    joined_step: int = 0
    num_base: int = 0
    out_base: int = 0
    is_adopted: bool = False
    is_whole: bool = True
    num_landed_pages: int = 0

    @property
    def key(self) -> Key:
        return self.request_id, self.attempt

    @property
    def num_tokens(self) -> int:
        """Prompt and as much of the answer as has been reported."""
        return self.num_known + self.num_reported - self.num_given

    def take_stock(self) -> None:
        """All that was reported counts as known: the answer continues from there, here or elsewhere."""
        self.num_known, self.num_given = self.num_tokens, self.num_reported

    def say(self, num_output: int, reason: FinishReason | None = None) -> TokenChunk:
        """The tokens of the answer up to `num_output` that the router does not know yet."""
        index, self.num_reported = self.num_reported, num_output
        count = num_output - index
        ids = TOKENS[:count] if count <= len(TOKENS) else TOKENS[:1] * count
        return TokenChunk(self.request_id, self.attempt, index, ids, (), reason, None, self.num_cached)
