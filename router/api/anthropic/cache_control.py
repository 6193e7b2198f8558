"""`cache_control`: where a client says that a prefix of its prompt comes again."""

from __future__ import annotations

from typing import Literal

from slipstream.router.api.openai.schema.fields import Label, Strict

MAX_BREAKPOINTS = 4  # of one request, as in Anthropic's API
TTL_S = {"5m": 300.0, "1h": 3600.0}


class CacheControl(Strict):
    """A prefix ends with the block that has this. `scope` is of Anthropic's own tenants, and has no effect."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Label | None = None

    @property
    def ttl_s(self) -> float:
        """For how long the prefix is to be kept, 5 minutes where nothing is said."""
        return TTL_S[self.ttl or "5m"]


class Cacheable(Strict):
    """What may be the end of such a prefix."""

    cache_control: CacheControl | None = None
