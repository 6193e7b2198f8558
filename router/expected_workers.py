"""How many workers there are to be, as whoever starts them has told the router."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedWorkers:
    """Groups of each role that are wanted, whether they are connected or not. A router that nobody tells expects one
    decode worker, and takes prefill groups as they come. `max_model_len`: the longest sequence that a decode worker
    will take; None: what the model allows. `has_served`: with another router they have, so that one answer, whichever
    way it takes, is proof enough."""

    num_prefill: int = 0
    num_decode: int = 1
    max_model_len: int | None = None
    has_served: bool = False
