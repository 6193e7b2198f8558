"""What peers of this host have offered and this rank is copying out of their pools."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from slipstream.kv_transfer.copy_crew import NUM_SLOTS, CopyCrew, native_crews
from slipstream.kv_transfer.page_pull import PagePull, as_row_copy, pull_pages
from slipstream.kv_transfer.page_transport import Landed, Pages
from slipstream.kv_transfer.pool import HostPagePool
from slipstream.kv_transfer.row_copy import MIN_BYTES
from slipstream.kv_transfer.shared_link import Offer, SharedLink

MAX_OWN = 4  # copies that the owner makes in one call; the helper makes as many meanwhile


@dataclass(frozen=True, slots=True)
class Pull:
    """`offer` is to be copied to `pages`."""

    offer: Offer
    pages: Pages
    landed: Landed


Finished = tuple[Pull, int | None]
"""And the checksum of what was found at its source; None where it names pages that its source does not have."""


class Pulls:
    """In the order in which they came; for one thread. `bell` as of CopyCrew."""

    def __init__(self, pool: HostPagePool, bell: int) -> None:
        self._pool = pool
        library = native_crews() if pool.copy is not None and pool.geometry.head_bytes >= MIN_BYTES else None
        self._crew = None if library is None else CopyCrew(library, bell)
        self._waiting: deque[Pull] = deque()
        self._handed_in: deque[Pull] = deque()
        self._copied: dict[Offer, Finished] = {}  # their sums are still to come

    def __len__(self) -> int:
        return len(self._waiting) + len(self._handed_in) + len(self._copied)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._handed_in)

    @property
    def has_more(self) -> bool:
        """There are some that nobody has begun."""
        return bool(self._waiting) or (self._crew is not None and self._crew.num_left > 0)

    def add(self, pull: Pull) -> None:
        self._waiting.append(pull)

    def work(self) -> list[Finished]:
        """Copies some. Returns what is finished, and can be judged."""
        finished = []
        for pull, found in self._copy():
            if found is None or pull.offer.checksum is not None:
                finished.append((pull, found))
            else:
                self._copied[pull.offer] = pull, found
        return finished

    def sum_came(self, offer: Offer) -> Finished | None:
        """The sum of an offer has come: the pull, if it has waited for that."""
        return self._copied.pop(offer, None)

    def _copy(self) -> list[Finished]:
        if self._crew is None:
            pulls = [self._waiting.popleft() for _ in range(min(MAX_OWN, len(self._waiting)))]
            found = pull_pages(self._pool, [_as_page_pull(pull) for pull in pulls])
            return list(zip(pulls, found, strict=True))
        new = [self._waiting.popleft() for _ in range(min(NUM_SLOTS - len(self._handed_in), len(self._waiting)))]
        self._handed_in.extend(new)
        found = self._crew.work([as_row_copy(self._pool, _as_page_pull(pull)) for pull in new], MAX_OWN)
        return [(self._handed_in.popleft(), checksum) for checksum in found]

    def drop(self, link: SharedLink) -> list[Pull]:
        """Those of a link that is down. Nobody copies for it any more when this returns; that takes as long as the
        copy that the helper is at.
        """
        if self._crew is not None and any(pull.offer.link is link for pull in self._handed_in):
            self._crew.drop_all()
            self._waiting.extendleft(reversed(self._handed_in))  # to be copied again
            self._handed_in.clear()
        dropped = [pull for pull in self._waiting if pull.offer.link is link]
        if dropped:
            self._waiting = deque(pull for pull in self._waiting if pull.offer.link is not link)
        for offer in [offer for offer in self._copied if offer.link is link]:
            dropped.append(self._copied.pop(offer)[0])
        return dropped

    def close(self) -> None:
        """Call when all links are down."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None


def _as_page_pull(pull: Pull) -> PagePull:
    assert pull.offer.link.pool is not None
    return PagePull(pull.pages, pull.offer.link.pool, pull.offer.page_ids, pull.offer.heads)
