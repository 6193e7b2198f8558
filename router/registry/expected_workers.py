"""How many workers the cluster should have, as set by its supervisor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedWorkers:
    """How many groups of each role are wanted, connected or not. By default a router expects one decode worker and uses
    prefill groups as they join. `max_model_len` is the longest sequence that a decode worker will take (None: what the
    model allows). `has_served`: these workers have already served under an earlier router, so any one answer, local or
    remote, is proof enough that the cluster works. `hindrance`: why none of the decode workers can be started before an
    operator does something; while none is connected, new requests are refused with it."""

    num_prefill: int = 0
    num_decode: int = 1
    max_model_len: int | None = None
    has_served: bool = False
    hindrance: str = ""
