"""The migration of a running sequence from one decode worker to another, as the router sees it.

    reserving --Reserved--> copying --Copied--> reserving (again: pages that have become full, or the last ones)
        '---Reserved of the last round--> freezing --Frozen--> starting --HandedOff--> moved

Until the sequence has moved, the request belongs to the source: after any failure it continues there. The destination
knows it as a separate attempt, so that a message of one worker cannot be mistaken for one of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.router.registry.worker_registry import WorkerState

MigrationPhase = Literal["reserving", "copying", "freezing", "starting"]
# In order: it continues elsewhere; the request or the attempt ended meanwhile; the destination had no room after all;
# something broke; it took too long; a worker was lost.
MigrationResult = Literal["moved", "ended", "refused", "failed", "timed_out", "lost"]


@dataclass(slots=True, eq=False)
class Migration:
    """A migration under way. `attempt` is the number by which the destination knows the sequence."""

    source: WorkerState
    destination: WorkerState
    attempt: int
    began_s: float
    num_known_tokens: int  # output tokens that the destination has
    num_pages: int  # pages that the destination has been asked for
    is_last: bool  # the round under way is the last
    phase: MigrationPhase = "reserving"
    num_full_pages: int = 0  # full pages that the rounds so far asked for
    num_rounds: int = 1
    transfer_id: int | None = None  # of the round under way
    source_has_ticket: bool = False
    has_landed: bool = False  # whether the pages of the last round have landed
    num_bytes: int = 0
    frozen_s: float | None = None
