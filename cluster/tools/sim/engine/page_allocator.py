"""The KV pages of a simulated worker: leased, remembered, and those that answers grow into."""

from __future__ import annotations

from slipstream.cluster.tools.sim.engine.decode_batch import DecodeBatch
from slipstream.cluster.tools.sim.engine.page_names import PageNames
from slipstream.cluster.tools.sim.engine.sim_attempt import SimAttempt
from slipstream.workers.mock.mock_pages import Lease, MockPages


class PageAllocator:
    """Pages that running answers grow into are counted by the batch, all at once, and leased when they stand still; or
    all of them are leased at the beginning (`reserves_output`)."""

    __slots__ = ("_batch", "_pages", "page_tokens", "reserves_output")

    def __init__(self, num_pages: int, page_tokens: int, batch: DecodeBatch, reserves_output: bool = False) -> None:
        self._pages = MockPages(num_pages)
        self._batch = batch
        self.page_tokens = page_tokens
        self.reserves_output = reserves_output

    @property
    def num_free(self) -> int:
        return self._pages.num_free - self._num_grown

    @property
    def num_used(self) -> int:
        """By somebody: what only the prefix cache knows is free."""
        return self._pages.num_used + self._num_grown

    @property
    def _num_grown(self) -> int:
        """Pages that running answers have grown into and that are not leased."""
        return 0 if self.reserves_output else self._batch.grown // self.page_tokens

    @property
    def prefix_cache(self) -> MockPages:
        return self._pages

    def lease(self, names: PageNames | None, num_tokens: int, num_room_tokens: int = 1) -> Lease[PageNames] | None:
        """For so many tokens and some that will come. None: there is no room."""
        num_pages = -(-(num_tokens + num_room_tokens) // self.page_tokens)
        if num_pages > self.num_free and self._batch.grown:
            return None
        return self._pages.take(names, num_pages, (num_tokens - 1) // self.page_tokens)

    def find_more(self, attempt: SimAttempt) -> int:
        """Others may have computed some of it meanwhile. Returns how many of its tokens are here."""
        assert attempt.lease is not None
        self._pages.find_more(attempt.lease, (attempt.num_known - 1) // self.page_tokens)
        return attempt.lease.num_known * self.page_tokens

    def num_missing(self, attempt: SimAttempt, num_tokens: int) -> int:
        """Pages that its lease lacks for so many tokens."""
        assert attempt.lease is not None
        return max(-(-num_tokens // self.page_tokens) - attempt.lease.num_pages, 0)

    def hold(self, attempt: SimAttempt, num_tokens: int) -> None:
        """Its lease is for so many tokens or more from now on."""
        num_missing = self.num_missing(attempt, num_tokens)
        if num_missing:
            assert attempt.lease is not None
            self._pages.grow(attempt.lease, num_missing)

    def remember(self, attempt: SimAttempt, num_tokens: int) -> None:
        """The KV of so many of its tokens is here."""
        if attempt.names is not None and attempt.lease is not None:
            self._pages.remember(attempt.lease, num_tokens // self.page_tokens)

    def release(self, attempt: SimAttempt, has_ended: bool = False) -> None:
        if attempt.lease is not None:
            self._pages.give_back(attempt.lease, attempt.request_id, attempt.retention if has_ended else None)
            attempt.lease = None
