"""Offers of peers on this host, which this rank copies out of their pools."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from slipstream.kv_transfer.api.page_transport import Landed, MessagePages
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.page_pull import PagePull, pull_pages, take_batch
from slipstream.kv_transfer.shared_memory.shm_link import Offer, ShmLink


@dataclass(frozen=True, slots=True)
class Pull:
    """`offer` is to be copied to `pages`."""

    offer: Offer
    pages: MessagePages
    landed: Landed


Finished = tuple[Pull, int | None]
"""And the checksum of what was found at its source; None where it names pages that its source does not have."""


class Pulls:
    """The pulls, in the order in which they came. For one thread only."""

    def __init__(self, pool: HostPagePool) -> None:
        self._pool = pool
        self._waiting: deque[Pull] = deque()
        self._copied: dict[Offer, Finished] = {}  # copied, but the peer's checksum is still to come

    def __len__(self) -> int:
        return len(self._waiting) + len(self._copied)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, pull: Pull) -> None:
        self._waiting.append(pull)

    def work(self) -> list[Finished]:
        """Copies a batch. Returns the pulls whose checksum can be compared already."""
        pulls = take_batch(self._pool, self._waiting, lambda pull: pull.pages)
        finished = []
        for pull, found in zip(pulls, pull_pages(self._pool, [_as_page_pull(pull) for pull in pulls]), strict=True):
            if found is None or pull.offer.checksum is not None:
                finished.append((pull, found))
            else:
                self._copied[pull.offer] = pull, found
        return finished

    def sum_came(self, offer: Offer) -> Finished | None:
        """The checksum of an offer has arrived. Returns its pull, if that was waiting for it."""
        return self._copied.pop(offer, None)

    def drop(self, link: ShmLink) -> list[Pull]:
        """Removes and returns the pulls of a link that is down."""
        dropped = [pull for pull in self._waiting if pull.offer.link is link]
        if dropped:
            self._waiting = deque(pull for pull in self._waiting if pull.offer.link is not link)
        for offer in [offer for offer in self._copied if offer.link is link]:
            dropped.append(self._copied.pop(offer)[0])
        return dropped


def _as_page_pull(pull: Pull) -> PagePull:
    assert pull.offer.link.pool is not None
    return PagePull(pull.pages, pull.offer.link.pool, pull.offer.page_ids, pull.offer.heads)
