"""Moves pages between ranks of one host: the receiver copies them straight out of the sender's pool.

    sender                                      receiver
      | greeting + descriptor of its pool ----------> |     maps the pool, read-only
      | <------------------------------------ answer  |
      | offer: layer, heads, page ids --------------> |     on_arrival
      |                                               |     receive: copies, sums up what it finds
      | checksum -----------------------------------> |     compares
      | <------------------------------------ taken   |

The receiver pulls, rather than the sender pushing, because of who may write into a page. A page that is reserved for a
hand-off is written only by the thread that holds its lease, so when the lease ends there is no other writer that would
have to be stopped. (A sender that pushes could be suspended in the middle of a copy and continue an hour later.) Here,
in turn, a suspended receiver that continues may *read* pages which the sender has long given to another sequence. But
such a message has the wrong checksum, and its link is gone. Both ends keep their pages until the message is taken or
the link is down.

`shm_listener.py` describes how links begin. The kernel reports a peer's death at once.

A packet is announced over the peer's eventfd, and not by the socket: for a socket, the kernel assumes that the writer
is about to sleep and wakes the reader on the writer's core, where the two then take turns.
"""

from __future__ import annotations

import os
import select
import time

from slipstream.kv_transfer.api.page_transport import FaultInjection, Landed, MessagePages
from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Done, Link, MessageArrival, TransportError, TransportEvents
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.shared_memory.shm_link import (
    OFFERS,
    RECORD,
    SUMS,
    TAKEN,
    Offer,
    ShmLink,
    encode_taken,
    read_core,
    read_offers,
    read_sums,
    read_taken,
)
from slipstream.kv_transfer.shared_memory.shm_listener import ShmListener
from slipstream.kv_transfer.shared_memory.shm_offers import MAX_IN_FLIGHT, Offers
from slipstream.kv_transfer.shared_memory.shm_pulls import Finished, Pull, Pulls
from slipstream.kv_transfer.sockets.cpu_cores import leave_core

SPIN_S = 50e-6
MAX_SLEEP_S = 60.0


class ShmTransport:
    """A `ControlChannel`, and the `PageMover` of its links. Listens at `address`, which is only a name here. Ranks
    whose pool has no shared memory can receive, but not connect. Raises TransportError if the name is taken.
    """

    def __init__(
        self, address: TransferAddress, pool: HostPagePool, token: str, fault_injection: FaultInjection
    ) -> None:
        self._address = address
        self._pool = pool
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        try:
            self._door = ShmListener(address, pool, token, self._poller, self._wake_fd)
        except TransportError:
            self._poller.close()
            os.close(self._wake_fd)
            raise
        self._poller.register(self._wake_fd, select.EPOLLIN)
        self._events: TransportEvents | None = None
        self._links: dict[int, ShmLink] = {}  # by the file descriptors of their sockets
        self._offers = Offers(pool, fault_injection)
        self._pulls = Pulls(pool)
        self._spin_until = 0.0

    @property
    def address(self) -> TransferAddress:
        return self._address

    def fileno(self) -> int:
        """Readable when `progress` has something to do."""
        return self._poller.fileno()

    def start(self, events: TransportEvents) -> None:
        self._events = events

    def connect(self, address: TransferAddress) -> ShmLink:
        """Raises TransportError if no peer of this host and user is there, or if this rank has no shared memory."""
        link = self._door.call(address)
        self._links[link.socket.fileno()] = link
        self._poller.register(link.socket.fileno(), 0)
        self._watch(link)
        return link

    def disconnect(self, link: Link) -> None:
        assert isinstance(link, ShmLink)
        if not link.is_alive:
            return
        link.is_alive = False
        fd = link.socket.fileno()
        del self._links[fd]
        self._poller.unregister(fd)
        link.socket.close()
        if link.event_fd is not None:
            os.close(link.event_fd)
        abandoned = self._offers.drop(link)
        given_up = self._pulls.drop(link)
        link.offered.clear()
        link.pool = None  # unmaps it
        for done in abandoned:
            done("the link is down")
        for pull in given_up:
            pull.landed("the link is down", False)

    def send_record(self, link: Link, record: bytes) -> None:
        assert isinstance(link, ShmLink)
        if link.is_alive:
            self._write(link, RECORD + record)

    def _write(self, link: ShmLink, packet: bytes) -> None:
        link.write(packet)
        if link.socket.wants_to_write:
            self._watch(link)

    def _watch(self, link: ShmLink) -> None:
        events = select.EPOLLRDHUP
        if not link.is_answered:
            events |= select.EPOLLIN
        if link.socket.wants_to_write:
            events |= select.EPOLLOUT
        self._poller.modify(link.socket.fileno(), events)

    @property
    def joins_layers(self) -> bool:
        return True

    @property
    def num_in_flight(self) -> int:
        return len(self._offers) + len(self._pulls)

    def payload_bytes(self, arrival: MessageArrival) -> int:
        return arrival.num_bytes

    def can_send(self, num_in_flight: int) -> bool:
        return self._offers.has_room(num_in_flight)

    def can_receive(self, num_in_flight: int) -> bool:
        return num_in_flight < MAX_IN_FLIGHT

    def send(self, link: Link, tag: int, pages: MessagePages, done: Done) -> None:
        assert isinstance(link, ShmLink)
        if not link.is_alive:
            done("the link is down")
            return
        self._offers.add(link, tag, pages, done)

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        offer = arrival.handle
        assert isinstance(offer, Offer)
        if not offer.link.is_alive:
            landed("the link is down", False)
        elif (offer.layer, offer.num_layers) != (pages.layer, pages.num_layers):
            landed(f"{offer.num_layers} layers from {offer.layer} on were offered for {pages.layer}", False)
        elif (len(offer.page_ids), len(offer.heads)) != (len(pages.page_ids), len(pages.heads)):
            landed(f"{len(offer.page_ids)} pages of {len(offer.heads)} heads do not fit", False)
        else:
            self._pulls.add(Pull(offer, pages, landed))

    def discard(self, arrival: MessageArrival) -> None:
        offer = arrival.handle
        assert isinstance(offer, Offer)
        if offer.link.is_alive:
            del offer.link.offered[offer.number]
            self._write(offer.link, encode_taken([offer.number]))

    def _land(self, finished: list[Finished]) -> None:
        taken: dict[ShmLink, list[int]] = {}
        for pull, _ in finished:
            offer = pull.offer
            del offer.link.offered[offer.number]
            taken.setdefault(offer.link, []).append(offer.number)
        for link, numbers in taken.items():
            self._write(link, encode_taken(numbers))
        for pull, found in finished:
            error = "it names pages that its sender does not have" if found is None else None
            pull.landed(error, found == pull.offer.checksum)

    def progress(self) -> bool:
        busy = False
        for fd, _ in self._poller.poll(0):
            busy = True
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                for link in list(self._links.values()):
                    self._serve_link(link)
            elif (known := self._links.get(fd)) is not None:
                self._serve_link(known)
            elif (new := self._door.serve(fd)) is not None:
                self._begin(new)
        if busy:
            self._spin_until = time.perf_counter() + SPIN_S
        return busy

    def work(self) -> bool:
        """One batch, so that the sockets are looked after between two."""
        busy = False
        if self._offers.has_work:
            self._send_offers()
            busy = True
        if self._pulls.has_work:
            self._land(self._pulls.work())
            busy = True
        if busy:
            self._spin_until = time.perf_counter() + SPIN_S
        return busy

    def _send_offers(self) -> None:
        for link, packet in self._offers.work():
            self._write(link, packet)
            if len(link.offers) == 1:
                os.sched_yield()  # lets the receiver run, if it was woken on this core

    def _begin(self, link: ShmLink) -> None:
        assert self._events is not None
        self._links[link.socket.fileno()] = link
        self._watch(link)
        self._events.on_link(link)

    def _serve_link(self, link: ShmLink) -> None:
        try:
            if link.socket.wants_to_write:
                link.socket.flush()
                self._watch(link)
            if not link.is_answered:
                if self._door.take_answer(link):
                    self._watch(link)
                else:
                    self._lose(link, "it does not know the cluster's token, or is of another version")
            while link.is_alive:
                packet = link.socket.receive()
                if not packet:
                    self._lose(link, "the connection was closed")
                    return
                self._take(link, packet)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(link, error.strerror or str(error))

    def _take(self, link: ShmLink, packet: bytes) -> None:
        assert self._events is not None
        kind, body = packet[:8], packet[8:]
        if kind == TAKEN:
            for number in read_taken(body):
                if (done := self._offers.take(link, number)) is not None:
                    done(None)
        elif kind == OFFERS and link.pool is not None:
            try:
                arrivals = list(read_offers(link, link.pool.geometry, body))
            except ValueError as error:
                self._lose(link, str(error))
                return
            if (core := read_core(body)) is not None:
                leave_core(core)
            for arrival in arrivals:
                self._events.on_arrival(arrival)
        elif kind == SUMS:
            self._take_sums(link, body)
        elif kind == RECORD:
            self._events.on_record(link, body)
        else:
            self._lose(link, "it does not keep to the protocol")

    def _take_sums(self, link: ShmLink, body: bytes) -> None:
        finished = []
        for number, checksum in read_sums(body):
            if (offer := link.offered.get(number)) is not None:
                offer.checksum = checksum
                if (one := self._pulls.sum_came(offer)) is not None:
                    finished.append(one)
        self._land(finished)

    def _lose(self, link: ShmLink, reason: str) -> None:
        assert self._events is not None
        if link.is_alive:
            self.disconnect(link)
            self._events.on_lost(link, reason)

    def spins(self) -> bool:
        """Whether the last sign of life is so recent that polling again costs less than being woken."""
        return time.perf_counter() < self._spin_until

    def wait(self, timeout_s: float) -> None:
        if self.spins():
            os.sched_yield()
        else:
            self._poller.poll(min(timeout_s, MAX_SLEEP_S), 1)

    def pause(self) -> bool:
        return False

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def give_up(self) -> None:
        """Nothing is in flight without links."""

    def close(self) -> None:
        for link in list(self._links.values()):
            self.disconnect(link)
        self._door.close()
        self._poller.close()
        os.close(self._wake_fd)
