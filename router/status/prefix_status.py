"""The state of the prefix index."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixIndexStatus:
    """Counts since the router started, and the present size. `*_tokens` are sums over prompts: how many tokens were
    `predicted` to be in the cache of the worker that was chosen to prefill, how many were `found` there, and the
    smaller of these two numbers, `confirmed`."""

    num_blocks: int = 0
    num_entries: int = 0
    num_expected: int = 0
    num_messages: int = 0
    num_stored: int = 0
    num_removed: int = 0
    num_gaps: int = 0
    num_snapshots: int = 0
    num_dropped: int = 0  # reported blocks that were not kept, because the index had `max_entries`
    predicted_tokens: int = 0
    found_tokens: int = 0
    confirmed_tokens: int = 0
