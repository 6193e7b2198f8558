"""The KV pages of a simulated worker: leased, remembered, and those that answers grow into."""

from __future__ import annotations

from slipstream.cluster.tools.sim.engine.decode_batch import DecodeBatch
from slipstream.cluster.tools.sim.engine.page_names import PageNames
from slipstream.cluster.tools.sim.engine.sim_attempt import SimAttempt
from slipstream.workers.mock.mock_pages import Lease, MockPages


class PageAllocator:
    """Pages that running answers grow into are counted by the batch, all at once, and leased when they stand still."""

    __slots__ = ("_batch", "_pages", "page_tokens")

    def __init__(self, num_pages: int, page_tokens: int, batch: DecodeBatch) -> None:
        self._pages = MockPages(num_pages)
        self._batch = batch
        self.page_tokens = page_tokens

    @property
    def num_free(self) -> int:
        return self._pages.num_free - self._batch.grown // self.page_tokens

    @property
    def num_used(self) -> int:
        """By somebody: what only the prefix cache knows is free."""
        return self._pages.num_used + self._batch.grown // self.page_tokens

    @property
    def prefix_cache(self) -> MockPages:
        return self._pages

    def lease(self, names: PageNames | None, num_tokens: int, num_room_tokens: int = 1) -> Lease[PageNames] | None:
        """For so many tokens and some that will come. None: there is no room."""
        num_pages = -(-(num_tokens + num_room_tokens) // self.page_tokens)
        if num_pages > self.num_free and self._batch.grown:
            return None
        return self._pages.take(names, num_pages, (num_tokens - 1) // self.page_tokens)

    def find_more(self, job: SimAttempt) -> int:
        """Others may have computed some of it meanwhile. Returns how many of its tokens are here."""
        assert job.lease is not None
        self._pages.find_more(job.lease, (job.num_known - 1) // self.page_tokens)
        return job.lease.num_known * self.page_tokens

    def num_missing(self, job: SimAttempt, num_tokens: int) -> int:
        """Pages that its lease lacks for so many tokens."""
        assert job.lease is not None
        return max(-(-num_tokens // self.page_tokens) - job.lease.num_pages, 0)

    def hold(self, job: SimAttempt, num_tokens: int) -> None:
        """Its lease is for so many tokens or more from now on."""
        num_missing = self.num_missing(job, num_tokens)
        if num_missing:
            assert job.lease is not None
            self._pages.grow(job.lease, num_missing)

    def remember(self, job: SimAttempt, num_tokens: int) -> None:
        """The KV of so many of its tokens is here."""
        if job.names is not None and job.lease is not None:
            self._pages.remember(job.lease, num_tokens // self.page_tokens)

    def release(self, job: SimAttempt) -> None:
        if job.lease is not None:
            self._pages.give_back(job.lease)
            job.lease = None
