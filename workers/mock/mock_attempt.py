"""One attempt on a mock worker."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.block_hash import HashChain
from slipstream.router.protocol.messages import EngineRequest
from slipstream.workers.interface.engine import AttemptKey
from slipstream.workers.mock.mock_pages import Lease
from slipstream.workers.mock.output_policy import PlannedOutput


class MockState(Enum):
    RESERVED = "reserved"  # pages are taken, and the first token is not known yet
    QUEUED = "queued"  # its prompt is to be computed here
    ARRIVING = "arriving"  # pages are on their way in, or, on a prefill worker, out
    DECODING = "decoding"
    COPYING = "copying"  # full pages of a sequence that decodes elsewhere are on their way in
    COPIED = "copied"  # they are here, and more will come
    FROZEN = "frozen"  # it stands still, to go on here or elsewhere
    DRAINING = "draining"  # it is not wanted any more, and its transfer has not ended


@dataclass(slots=True, eq=False)
class MockAttempt:
    """One attempt. Counts are in tokens. `num_output` is the whole answer so far, including that of earlier
    attempts."""

    request: EngineRequest
    key: AttemptKey
    state: MockState
    output: PlannedOutput
    stop_ids: frozenset[int]  # tokens that end the answer
    num_prompt: int
    num_output: int
    num_uncomputed: int
    max_output: int
    lease: Lease[HashChain]
    tokens: array[int] | None  # prompt and output, for the prefix cache
    has_begun: bool = False  # whether its prompt is being computed
    num_cached: int = 0
    ticket: HandoffTicket | None = None
    is_adopted: bool = False  # it decoded on another worker before
    source: PeerId | None = None  # that worker
    due_s: float | None = None  # the time of its current timer; older timers are ignored

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output

    @property
    def num_sent_bytes(self) -> int:
        """The number of bytes of the pages that its ticket asks for."""
        ticket = self.ticket
        assert ticket is not None
        return ticket.num_pages * ticket.num_layers * ticket.num_kv_heads * ticket.head_bytes

    def know(self, token_ids: tuple[int, ...]) -> None:
        """Adds output tokens that were computed elsewhere."""
        self.num_output += len(token_ids)
        if self.tokens is not None:
            self.tokens.extend(token_ids)
