"""What the workers of a model have said that requests may ask of them."""

from __future__ import annotations

from typing import NamedTuple


class WorkerAbilities(NamedTuple):
    """`is_known`: a worker is connected. `end_token_ids` end an output unless its request ignores them.
    `logits_processors` are names that every worker knows. `says_ends`: not all workers are of 0.1.0, which does not say
    its end tokens."""

    is_known: bool = False
    end_token_ids: tuple[int, ...] = ()
    logits_processors: tuple[str, ...] = ()
    says_ends: bool = True


NO_ABILITIES = WorkerAbilities()
