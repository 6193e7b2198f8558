"""What is counted of each version of the model, and how it stands."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class VersionCounts:
    """Of one version since the router started. `ttft_s` sums the seconds from being queued to the first token, of the
    `num_first_tokens` requests that had one; `ends` counts outcomes. Both go to the version that the request ended on.
    """

    num_requests: int = 0  # that were given this version when they were admitted
    num_moved_in: int = 0  # that began on another one
    num_failed_attempts: int = 0  # that the version may be to blame for
    num_first_tokens: int = 0
    ttft_s: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """`weight` None: there is no split. `is_live`: a decode worker of it takes new work."""

    name: str
    weight: float | None
    is_live: bool
    num_prefill: int
    num_decode: int
    num_waiting: int
    counts: VersionCounts
