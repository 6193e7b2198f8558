"""The counts and the state of each version of the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class VersionCounts:
    """The counts of one version since the router started. `ttft_s` is the sum of the times to first token of the
    `num_first_tokens` requests that had one; `ends` counts outcomes. Both are counted for the version that the request
    ended on.
    """

    num_requests: int = 0  # requests that were given this version at admission
    num_moved_in: int = 0  # requests that came from another version
    num_failed_attempts: int = 0  # failures that the version may be to blame for
    num_first_tokens: int = 0
    ttft_s: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of one version. `weight` is its share in the split; None: there is no split. `is_live`: one of its
    decode workers takes new work."""

    name: str
    weight: float | None
    is_live: bool
    num_prefill: int
    num_decode: int
    num_waiting: int
    counts: VersionCounts
