"""The messages about a running sequence that moves to another decode worker. `migration_flow` has the diagram.

The destination also sends `Reserved`, `HandedOff` and `Failed`, and waits for `Start`, as for any other attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Adopt:
    """Destination: lease pages for a sequence that is decoding on `source`, and post receives for what `source` sends.

    With `num_room_tokens` 0 only the pages that are full by now are wanted; the sequence continues to decode at the
    source, and later pages follow with `Extend`. Otherwise this is the last round: it leases pages for as many more
    tokens, and the sequence continues here once the pages have landed and `Start` has brought the missing tokens."""

    seq: int
    request: EngineRequest
    source: PeerId
    source_tp: int
    num_room_tokens: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Destination: an adopted sequence has grown by `token_ids`. As `Adopt`, for the pages that follow those that have
    landed."""

    seq: int
    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    num_room_tokens: int


@dataclass(frozen=True, slots=True)
class Migrate:
    """Source: send the pages of a sequence that is decoding here to its destination, which knows it as attempt
    `to_attempt`. With `freeze`, first stop it at the end of the step and send `Frozen`. If it cannot be sent, it goes
    on here, and the source sends `Failed` about `to_attempt`."""

    request_id: str
    attempt: int
    to_attempt: int
    ticket: HandoffTicket
    freeze: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """Source: the migration is cancelled, and the sequence continues here if it was frozen. Unknown ids are ignored."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Destination: the full pages of transfer `transfer_id` have arrived, while the sequence continues at its source.
    Waits for `Extend`."""

    request_id: str
    attempt: int
    transfer_id: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Frozen:
    """Source: the sequence is frozen after `num_output_tokens` output tokens, all of which have been sent to the
    router. Its last pages are on their way. Waits for `Resume` or `Cancel`."""

    request_id: str
    attempt: int
    num_output_tokens: int
