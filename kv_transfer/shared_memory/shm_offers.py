"""What this rank offers to peers on its host: messages that are not offered yet, not summed up yet, or not taken yet.

Pages are offered before their checksums are computed, so that the receiver can copy them meanwhile; the checksums
follow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from slipstream.kv_transfer.api.page_transport import FaultInjection, MessagePages
from slipstream.kv_transfer.api.transport import Done
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.page_pull import sum_pages, take_batch
from slipstream.kv_transfer.shared_memory.shm_link import ShmLink, encode_offer, encode_offers, encode_sums
from slipstream.kv_transfer.sockets.cpu_cores import current_core

MAX_IN_FLIGHT = 32  # per link: enough that neither end waits for the other, few enough for the L3 cache
MAX_BATCH = 8  # offers in one packet


@dataclass(frozen=True, slots=True)
class _OfferedMessage:
    """Pages to be offered, and then summed up."""

    link: ShmLink
    number: int
    tag: int
    pages: MessagePages


class Offers:
    """All offers of this rank. For one thread only."""

    def __init__(self, pool: HostPagePool, fault_injection: FaultInjection) -> None:
        self._pool = pool
        self._fault_injection = fault_injection
        self._new: deque[_OfferedMessage] = deque()
        self._sums: deque[_OfferedMessage] = deque()
        self._num_untaken = 0

    def __len__(self) -> int:
        """The number of messages that have not been taken, whether offered or not."""
        return self._num_untaken

    def has_room(self, num_in_flight: int) -> bool:
        """Whether there is room for one more message beside so many on a link. The first one is offered alone, so that
        the receiver can begin; after that, more and more are offered at a time."""
        num_offered = self._num_untaken - len(self._new)
        return num_in_flight < MAX_IN_FLIGHT and len(self._new) < min(MAX_BATCH, 1 + num_offered)

    def add(self, link: ShmLink, tag: int, pages: MessagePages, done: Done) -> None:
        link.num_offers += 1
        link.offers[link.num_offers] = done
        self._num_untaken += 1
        self._new.append(_OfferedMessage(link, link.num_offers, tag, pages))

    @property
    def has_work(self) -> bool:
        return bool(self._new or self._sums)

    def work(self) -> list[tuple[ShmLink, bytes]]:
        """The packets to write next: offers of what is new, or else one batch of checksums. Offers cannot delay
        checksums for long, because at some point no more can be made until some are taken."""
        return self._offer() if self._new else self._sum_up()

    def _offer(self) -> list[tuple[ShmLink, bytes]]:
        offers: dict[ShmLink, list[bytes]] = {}
        for one in self._new:
            offers.setdefault(one.link, []).append(encode_offer(one.pages, one.number, one.tag))
        self._sums.extend(self._new)
        self._new.clear()
        core = current_core()
        return [(link, packet) for link, parts in offers.items() for packet in encode_offers(parts, core)]

    def _sum_up(self) -> list[tuple[ShmLink, bytes]]:
        some = take_batch(self._pool, self._sums, lambda one: one.pages)
        wanted = [one for one in some if one.number in one.link.offers]
        sums: dict[ShmLink, list[tuple[int, int]]] = {}
        for one, checksum in zip(wanted, sum_pages(self._pool, [one.pages for one in wanted]), strict=True):
            sent = checksum ^ 0x10 if self._fault_injection.should_corrupt(one.pages.num_layers) else checksum
            sums.setdefault(one.link, []).append((one.number, sent))
        return [(link, encode_sums(some)) for link, some in sums.items()]

    def take(self, link: ShmLink, number: int) -> Done | None:
        """The peer has taken a message, or does not want it. Returns its `done`; None if there is no such number."""
        done = link.offers.pop(number, None)
        self._num_untaken -= done is not None
        return done

    def drop(self, link: ShmLink) -> list[Done]:
        """The link is down. Returns the callbacks of its messages' senders."""
        dropped = list(link.offers.values())
        self._num_untaken -= len(dropped)
        link.offers.clear()
        self._new = deque(one for one in self._new if one.link is not link)
        self._sums = deque(one for one in self._sums if one.link is not link)
        return dropped
