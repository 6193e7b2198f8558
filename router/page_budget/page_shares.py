"""How many pages each worker of a host should have at most, by what it needs now. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.router.page_budget.water_filling import water_fill

HEADROOM_DIVISOR = 8  # a worker is given room before it stalls: this part of what it uses
MIN_HEADROOM_PAGES = 4


@dataclass(frozen=True, slots=True)
class PageNeeds:
    """A worker and its pages. `page_bytes` is what a page takes on the host in question, `num_pages` what the pool
    could have at most, `longest` what a sequence of full length fills. `num_wanted` more than the `num_used` are needed
    for what waits, on the worker or in the router's queue."""

    name: str
    page_bytes: float
    num_pages: int
    longest: int
    num_used: int = 0
    num_cached: int = 0
    num_wanted: int = 0
    weight: float = 1.0

    @property
    def is_active(self) -> bool:
        return self.num_used + self.num_wanted > 0

    @property
    def need(self) -> int:
        """Pages with which nothing waits, with some room for running sequences to grow; 0 if there are none."""
        if not self.is_active:
            return 0
        headroom = max(self.num_used // HEADROOM_DIVISOR, MIN_HEADROOM_PAGES)
        return min(self.num_used + self.num_wanted + headroom, self.num_pages)

    @property
    def assured(self) -> int:
        """What it needs so that some sequence of it makes progress, whichever that is."""
        return min(self.longest, self.num_pages)


def divide_pages(budget_bytes: float, workers: Sequence[PageNeeds]) -> dict[str, int]:
    """The limit of each worker, by name. Together they take at most `budget_bytes`.

    Each round is divided by weighted max-min fairness, from what the rounds before have left:

        1  a sequence of full length for each worker, if that is possible for all. If not, in the order of `workers`,
           which the caller changes from time to time: with half of what it needs, a long sequence would never run
        2  what running and waiting sequences need
        3  a sequence of full length, for those that have nothing to do
        4  what is cached
        5  the rest
    """
    pages = _Division(budget_bytes, workers)
    if sum(worker.assured * worker.page_bytes for worker in workers) <= budget_bytes:
        pages.give([worker.assured for worker in workers])
    else:
        pages.give_in_order([min(worker.assured, worker.need) for worker in workers])
    pages.give([worker.need for worker in workers])
    pages.give([max(worker.need, worker.assured) for worker in workers])
    pages.give([worker.need + worker.num_cached for worker in workers])
    pages.give([worker.num_pages for worker in workers])
    return pages.whole()


class _Division:
    """Bytes that have been given to each worker, and those that are left."""

    def __init__(self, budget_bytes: float, workers: Sequence[PageNeeds]) -> None:
        self._workers = workers
        self._left = budget_bytes
        self._given = [0.0] * len(workers)
        self._weights = [worker.weight for worker in workers]

    def give(self, up_to: Sequence[int]) -> None:
        """Gives each worker up to so many pages in all."""
        if self._left <= 0.0:
            return
        shares = water_fill(self._left, self._missing(up_to), self._weights)
        for at, share in enumerate(shares):
            self._add(at, share)

    def give_in_order(self, up_to: Sequence[int]) -> None:
        """The first get so many pages in all, as long as there are as many."""
        for at, missing in enumerate(self._missing(up_to)):
            if missing <= self._left:
                self._add(at, missing)

    def whole(self) -> dict[str, int]:
        """The shares in whole pages."""
        return {
            worker.name: min(int((given + 1e-6) // worker.page_bytes), worker.num_pages)
            for worker, given in zip(self._workers, self._given, strict=True)
        }

    def _missing(self, up_to: Sequence[int]) -> list[float]:
        return [
            max(min(pages, worker.num_pages) * worker.page_bytes - given, 0.0)
            for pages, worker, given in zip(up_to, self._workers, self._given, strict=True)
        ]

    def _add(self, at: int, share: float) -> None:
        self._given[at] += share
        self._left = max(self._left - share, 0.0)
