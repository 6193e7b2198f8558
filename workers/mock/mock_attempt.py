"""One attempt on a mock worker, and the tokens that it produces."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum

from xxhash import xxh3_64_intdigest

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.block_hash import HashChain
from slipstream.router.protocol.messages import EngineRequest
from slipstream.workers.interface.engine import AttemptKey
from slipstream.workers.mock.mock_pages import Lease
from slipstream.workers.mock.mock_profile import FIRST_TOKEN_ID

_SPREAD = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio: neighbouring positions get unrelated tokens


def expected_token(prompt_ids: bytes, position: int, vocab_size: int) -> int:
    """The token at `position` of the output of a prompt (packed int32)."""
    return token_at(xxh3_64_intdigest(prompt_ids), position, vocab_size - FIRST_TOKEN_ID)


def token_at(seed: int, position: int, num_choices: int) -> int:
    """One of `num_choices` ordinary tokens."""
    return FIRST_TOKEN_ID + (((seed + position * _SPREAD) & 0xFFFF_FFFF_FFFF_FFFF) >> 24) % num_choices


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
    seed: int
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
