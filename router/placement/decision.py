"""What a placement is: where a request runs, why, and what else was possible.

local    the decode worker prefills in chunks beside its decoding
remote   a prefill group computes the prompt, its pages move to the decode worker
wait     nobody has room now, or waiting for somebody is better than what is free
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.roster import WorkerState

PlacementReason = Literal[
    "short_prompt",  # local: few tokens to prefill
    "no_prefill_group",  # local: none is connected, so that the service goes on
    "prefill_too_small",  # local: no prefill group could ever hold it
    "prefill_failed",  # local: it failed on every prefill group before
    "cached_prefix",  # local after all: the reservation found most of the prompt cached
    "long_prompt",  # remote
]


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a candidate's cost. `value` is in seconds unless the name says otherwise."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way the request could have gone: prefill at `prefill` (None: at `decode`), then decoding at `decode`.

    The lower the `cost` the better; it is the sum of the `terms`. `fits`: the credits were there at that moment.
    `excluded` says why a worker was out of the question whatever its cost ("failed this request before").
    """

    decode: PeerId
    prefill: PeerId | None
    cost: float
    fits: bool
    terms: tuple[Term, ...] = ()
    num_cached_tokens: int = 0  # of the prompt, expected in the cache of the worker that prefills
    excluded: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided and why, in plain values that outlive the workers.

    `candidates` come best first, the chosen one among them. `margin` is how much dearer the best other way was, None
    if there was none. Predictions are None where the policy makes none.
    """

    decode: PeerId
    prefill: PeerId | None
    reason: PlacementReason
    why: str
    candidates: tuple[Candidate, ...]
    policy: str = ""
    margin: float | None = None
    predicted_ttft_s: float | None = None
    predicted_itl_s: float | None = None
    predicted_output_tokens: int | None = None

    def chose(self, candidate: Candidate) -> bool:
        """Whether it is the one that was taken."""
        return candidate.decode == self.decode and candidate.prefill == self.prefill


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. `prefill` is None for local prefill."""

    decode: WorkerState
    prefill: WorkerState | None
    decision: Decision


@dataclass(frozen=True, slots=True)
class Wait:
    """It does not go anywhere now. `lacks` is the side whose credits are missing; "worker": there is none of decode."""

    lacks: Literal["worker", "decode", "prefill"]
