"""The pages that sequences are sure to get, where the scheduler admits none without room for its whole answer."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.workers.engine.kv_cache.page_pool import PagePool
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.scheduling.sequence import RESERVED_STATES, Sequence, SequenceState
from slipstream.workers.interface.engine import AttemptKey

# The states in which a sequence owns pages and may come to need more.
_GROWING_STATES = frozenset({SequenceState.RUNNING, *RESERVED_STATES})


class PromisedPages:
    """Where `limits.reserves_output`, a sequence is promised pages for the most tokens that it may come to have, and
    takes them one by one. Until then they may hold cached prefixes.

    A limit on the pool must not withhold them. So it takes effect as far as pages are neither in use nor promised, and
    further with each call of `withhold`. Without `reserves_output` nothing is promised, and a limit is in effect at
    once. `sequences` are those of the scheduler.
    """

    def __init__(self, limits: EngineLimits, pool: PagePool, sequences: Mapping[AttemptKey, Sequence]) -> None:
        self._limits = limits
        self._pool = pool
        self._sequences = sequences
        self._limit = limits.num_pages  # as it was set; the pool's own may be higher

    def change_limits(self, limits: EngineLimits) -> None:
        self._limits = limits

    @property
    def num_pages(self) -> int:
        """Pages that are promised and not taken yet."""
        if not self._limits.reserves_output:
            return 0
        blocks_for, num_groups = self._limits.blocks_for, len(self._limits.windows)
        growing = [one for one in self._sequences.values() if one.state in _GROWING_STATES]
        return num_groups * sum([max(blocks_for(one.most_tokens) - len(one.pages), 0) for one in growing])

    def set_limit(self, num_pages: int) -> None:
        """Sets the limit on the pool's pages (see `PagePool.set_limit`)."""
        self._limit = num_pages
        self._pool.set_limit(self._lowest_limit)

    def withhold(self) -> None:
        """Brings the pool nearer to its limit, now that pages may have been given back, or promises ended."""
        if self._pool.limit > self._limit:
            self._pool.set_limit(self._lowest_limit)

    def check_integrity(self) -> None:
        """Raises AssertionError if a promise cannot be kept, or a limit is not in effect as far as it can be."""
        assert self._pool.num_available >= self.num_pages, "more is promised than there is"
        assert self._pool.limit == min(self._lowest_limit, self._limits.num_pages), "pages are withheld too late"

    @property
    def _lowest_limit(self) -> int:
        # Where nothing is promised, pages in use do not count: they are withheld once they are given back.
        return max(self._limit, self._pool.num_used + self.num_pages) if self._limits.reserves_output else self._limit
