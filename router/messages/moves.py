"""What is said when a sequence moves to another decode worker while it decodes: `router.migration` draws it.

Where it goes, the destination, says `Reserved`, `HandedOff` and `Failed` as of any attempt, and waits for `Start`.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.kv_transfer.ticket import HandoffTicket, PeerId
from slipstream.router.messages.request import EngineRequest

# ---- router -> worker


@dataclass(frozen=True, slots=True)
class Adopt:
    """Decode worker: lease pages for a sequence that decodes on `source`, and post receives for what `source` sends.

    `num_room_tokens` 0: only pages that are full by now are wanted, and the sequence goes on there meanwhile; what
    follows them is asked for with `Extend`. Otherwise this is the last of it: pages for as many more tokens, and the
    sequence goes on here once they have landed and `Start` has told the tokens that are missing."""

    seq: int
    request: EngineRequest
    source: PeerId
    source_tp: int
    num_room_tokens: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Decode worker: an adopted sequence has got on by `token_ids`; the same for the pages after those that landed."""

    seq: int
    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    num_room_tokens: int


@dataclass(frozen=True, slots=True)
class Migrate:
    """Decode worker: send the pages of a sequence that decodes here to where it goes on as attempt `to_attempt`. With
    `freeze` it stops at the end of the step first, and says `Frozen`. If it cannot be sent it goes on here, and
    `Failed` says so of `to_attempt`."""

    request_id: str
    attempt: int
    to_attempt: int
    ticket: HandoffTicket
    freeze: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """Decode worker: the migration is off. A sequence that was frozen goes on here. Unknown ids are ignored."""

    request_id: str
    attempt: int


# ---- worker -> router


@dataclass(frozen=True, slots=True)
class Copied:
    """Decode worker: the full pages of a sequence that goes on elsewhere are here, those of `transfer_id`; it waits for
    an `Extend`."""

    request_id: str
    attempt: int
    transfer_id: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Frozen:
    """Decode worker: the sequence stands still after `num_output_tokens` tokens of output, all of them told, and its
    last pages are being sent. It waits for `Resume` or `Cancel`."""

    request_id: str
    attempt: int
    num_output_tokens: int
