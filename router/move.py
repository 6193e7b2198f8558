"""One running sequence on its way from a decode worker to another, as the router sees it.

    asked --Reserved--> copying --Copied--> asked (again: what has become full meanwhile, or the last pages)
      '---Reserved of the last round--> freezing --Frozen--> starting --HandedOff--> moved

Until it has moved the request belongs to the source: whatever goes wrong, it goes on there. The destination knows it as
an attempt of its own, so that no message of one can be taken for one of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from slipstream.router.roster import WorkerState

MovePhase = Literal["asked", "copying", "freezing", "starting"]
# It goes on elsewhere; the request or the attempt ended meanwhile; the destination had no room after all; something
# broke; it took too long; a worker was lost.
MoveResult = Literal["moved", "ended", "refused", "failed", "timed_out", "lost"]


@dataclass(slots=True, eq=False)
class Move:
    """`attempt` is what the destination knows the sequence as."""

    source: WorkerState
    destination: WorkerState
    attempt: int
    began_s: float
    num_known_tokens: int  # of the output, those that the destination has been told
    num_pages: int  # that the destination has been asked for
    is_last: bool  # the round under way is the last
    phase: MovePhase = "asked"
    num_full_pages: int = 0  # wanted by the rounds so far
    num_rounds: int = 1
    transfer_id: int | None = None  # of the round under way
    is_source_told: bool = False
    has_landed: bool = False  # the last round
    num_bytes: int = 0
    frozen_s: float | None = None
