"""Pages between ranks of one host: the receiver copies them straight out of the sender's pool.

    sender                                      receiver
      | greeting + descriptor of its pool ----------> |     maps the pool, read-only
      | <------------------------------------ answer  |
      | offer: layer, heads, page ids, checksum ----> |     on_arrival
      |                                               |     receive: copies, sums up what it finds, compares
      | <------------------------------------ taken   |

The receiver pulls, the sender does not push, because of who may write into a page. A page that is reserved for a
hand-off is written by the thread that holds its lease and by nobody else: when the lease ends there is no writer left
whom the end would have to reach, as there would be with a sender that was stopped in the middle of a copy and goes
on an hour later. The other way round a stopped receiver that goes on may *read* pages which the sender has long given
to another sequence. Such a message has the wrong checksum, and the link that it came on is gone. Both ends keep their
pages until the message is taken or the link is down.

Links are Unix sockets, sequenced packets, under a name that takes the cluster's token to guess; both ends look at the
other's user id and at its proof (`greeting.py`), and the kernel tells of a peer's death at once. The view that is
handed over can neither be written nor shrunk (`pool_memory.py`).

A packet is announced by ringing the peer's bell, an eventfd, and not by the socket: the kernel takes the writer of a
socket for one that is about to sleep and wakes the reader on the writer's core, where the two then take turns.
"""

from __future__ import annotations

import logging
import os
import select
import struct
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from slipstream.kv_transfer.greeting import Greeter
from slipstream.kv_transfer.packet_socket import PacketListener, PacketSocket
from slipstream.kv_transfer.page_pull import PagePull, pull_pages, sum_pages
from slipstream.kv_transfer.page_transport import FireDrill, Landed, Pages
from slipstream.kv_transfer.pool import HostPagePool, HostPages
from slipstream.kv_transfer.pool_memory import view_of
from slipstream.kv_transfer.shared_link import (
    OFFERS,
    RECORD,
    TAKEN,
    Offer,
    SharedLink,
    encode_offer,
    encode_taken,
    fill_packets,
    read_offers,
    read_taken,
)
from slipstream.kv_transfer.ticket import TransferAddress
from slipstream.kv_transfer.transport import Arrival, Done, Link, TransportError, TransportEvents

logger = logging.getLogger(__name__)

_GEOMETRY = struct.Struct("<QQQQ")  # layers, pages, heads, head_bytes: the body of a greeting
MAX_IN_FLIGHT = 32  # of a link; far enough ahead that neither end waits for the other, near enough for the L3 cache
MAX_BATCH = 8  # copies in one call: what Python does for them is done at once, before they sweep it out of the caches
SPIN_S = 50e-6
MAX_SLEEP_S = 60.0
MAX_CALLERS = 64  # that have connected and not said a greeting yet


@dataclass(frozen=True, slots=True)
class _Sum:
    """Pages to be summed up and then offered."""

    link: SharedLink
    number: int
    tag: int
    pages: Pages


@dataclass(frozen=True, slots=True)
class _Pull:
    offer: Offer
    pages: Pages
    landed: Landed


class SharedPoolTransport:
    """Listens for callers to `address`, which is only a name here. Ranks whose pool has no shared memory can receive
    but not call. Raises TransportError if the name is taken.
    """

    def __init__(self, address: TransferAddress, pool: HostPagePool, token: str, drill: FireDrill) -> None:
        self._address = address
        self._pool = pool
        self._greeter = Greeter(token)
        self._drill = drill
        try:
            self._listener = PacketListener(self._greeter.socket_name(address))
        except OSError as error:
            raise TransportError(f"no socket for peers on this host: {error}") from error
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._poller.register(self._wake_fd, select.EPOLLIN)
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        self._events: TransportEvents | None = None
        self._callers: dict[int, PacketSocket] = {}  # these and the links by their file descriptors
        self._links: dict[int, SharedLink] = {}
        self._sums: deque[_Sum] = deque()
        self._pulls: deque[_Pull] = deque()
        self._num_offers = 0
        self._spin_until = 0.0

    @property
    def address(self) -> TransferAddress:
        return self._address

    @property
    def num_in_flight(self) -> int:
        return self._num_offers + len(self._pulls)

    def fileno(self) -> int:
        """Readable when `progress` has something to do."""
        return self._poller.fileno()

    def start(self, events: TransportEvents) -> None:
        self._events = events

    # ---- links

    def connect(self, address: TransferAddress) -> SharedLink:
        """Raises TransportError if no peer of this host and user is there, or if this rank has no shared memory."""
        memory = self._pool.memory
        if memory is None or memory.file is None:
            raise TransportError("the pool of this rank is not in shared memory")
        try:
            connection = PacketSocket.connect(self._greeter.socket_name(address))
        except OSError as error:
            raise TransportError(f"{address.host}:{address.port} is not on this host: {error}") from error
        geometry = self._pool.geometry
        body = _GEOMETRY.pack(geometry.num_layers, geometry.num_pages, geometry.num_heads, geometry.head_bytes)
        greeting = self._greeter.greet(address, body)
        connection.send(greeting, (memory.file, self._wake_fd))
        link = SharedLink(connection, greeting)
        self._links[connection.fileno()] = link
        self._poller.register(connection.fileno(), 0)
        self._watch(link)
        return link

    def disconnect(self, link: Link) -> None:
        assert isinstance(link, SharedLink)
        if not link.is_alive:
            return
        link.is_alive = False
        fd = link.socket.fileno()
        del self._links[fd]
        self._poller.unregister(fd)
        link.socket.close()
        if link.bell is not None:
            os.close(link.bell)
        abandoned = list(link.offers.values())
        self._num_offers -= len(abandoned)
        link.offers.clear()
        given_up = [pull for pull in self._pulls if pull.offer.link is link]
        self._pulls = deque(pull for pull in self._pulls if pull.offer.link is not link)
        self._sums = deque(one for one in self._sums if one.link is not link)
        link.pool = None  # unmaps it
        for done in abandoned:
            done("the link is down")
        for pull in given_up:
            pull.landed("the link is down", False)

    def send_record(self, link: Link, record: bytes) -> None:
        assert isinstance(link, SharedLink)
        if link.is_alive:
            self._write(link, RECORD + record)

    def _write(self, link: SharedLink, packet: bytes) -> None:
        link.write(packet)
        if link.socket.wants_to_write:
            self._watch(link)

    def _watch(self, link: SharedLink) -> None:
        events = select.EPOLLRDHUP
        if not link.is_answered:
            events |= select.EPOLLIN
        if link.socket.wants_to_write:
            events |= select.EPOLLOUT
        self._poller.modify(link.socket.fileno(), events)

    # ---- messages

    def can_send(self, link: Link, num_in_flight: int) -> bool:
        # The first one alone, so that the receiver can begin, and then more and more at a time.
        num_offered = num_in_flight - len(self._sums)
        return num_in_flight < MAX_IN_FLIGHT and len(self._sums) < min(MAX_BATCH, 1 + num_offered)

    def can_receive(self, arrival: Arrival, num_in_flight: int) -> bool:
        return num_in_flight < MAX_IN_FLIGHT

    def send(self, link: Link, tag: int, pages: Pages, done: Done) -> None:
        assert isinstance(link, SharedLink)
        if not link.is_alive:
            done("the link is down")
            return
        link.num_offers += 1
        link.offers[link.num_offers] = done
        self._num_offers += 1
        self._sums.append(_Sum(link, link.num_offers, tag, pages))

    def receive(self, arrival: Arrival, pages: Pages, landed: Landed) -> None:
        offer = arrival.handle
        assert isinstance(offer, Offer)
        if not offer.link.is_alive:
            landed("the link is down", False)
        elif offer.layer != pages.layer:
            landed(f"layer {offer.layer} was offered for {pages.layer}", False)
        elif (len(offer.page_ids), len(offer.heads)) != (len(pages.page_ids), len(pages.heads)):
            landed(f"{len(offer.page_ids)} pages of {len(offer.heads)} heads do not fit", False)
        else:
            self._pulls.append(_Pull(offer, pages, landed))

    def discard(self, arrival: Arrival) -> None:
        offer = arrival.handle
        assert isinstance(offer, Offer)
        if offer.link.is_alive:
            self._write(offer.link, encode_taken([offer.number]))

    def _make_offers(self) -> None:
        sums = [self._sums.popleft() for _ in range(min(MAX_BATCH, len(self._sums)))]
        packets: dict[SharedLink, list[bytes]] = {}
        for one, checksum in zip(sums, sum_pages(self._pool, [one.pages for one in sums]), strict=True):
            told = checksum ^ 0x10 if self._drill.strikes() else checksum
            packets.setdefault(one.link, []).append(encode_offer(one.pages, one.number, one.tag, told))
        for link, offers in packets.items():
            for packet in fill_packets(offers):
                self._write(link, OFFERS + packet)

    def _run_pulls(self) -> None:
        pulls = [self._pulls.popleft() for _ in range(min(MAX_BATCH, len(self._pulls)))]
        checksums = pull_pages(self._pool, [self._as_page_pull(pull) for pull in pulls])
        taken: dict[SharedLink, list[int]] = {}
        for pull in pulls:
            taken.setdefault(pull.offer.link, []).append(pull.offer.number)
        for link, numbers in taken.items():
            self._write(link, encode_taken(numbers))
        for pull, checksum in zip(pulls, checksums, strict=True):
            error = "it names pages that its sender does not have" if checksum is None else None
            pull.landed(error, checksum == pull.offer.checksum)

    def _as_page_pull(self, pull: _Pull) -> PagePull:
        assert pull.offer.link.pool is not None
        return PagePull(pull.pages, pull.offer.link.pool, pull.offer.page_ids, pull.offer.heads)

    # ---- the loop

    def progress(self) -> bool:
        busy = False
        for fd, _ in self._poller.poll(0):
            busy = True
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                for link in list(self._links.values()):
                    self._serve_link(link)
            elif fd == self._listener.fileno():
                self._accept()
            elif (known := self._links.get(fd)) is not None:
                self._serve_link(known)
            elif (caller := self._callers.get(fd)) is not None:
                self._serve_caller(caller)
        # One batch, so that the sockets are looked after between two.
        if self._sums:
            self._make_offers()
            busy = True
        if self._pulls:
            self._run_pulls()
            busy = True
        if busy:
            self._spin_until = time.perf_counter() + SPIN_S
        return busy

    def _accept(self) -> None:
        while (caller := self._listener.accept()) is not None:
            if len(self._callers) >= MAX_CALLERS:
                self._dismiss(next(iter(self._callers.values())))
            self._callers[caller.fileno()] = caller
            self._poller.register(caller.fileno(), select.EPOLLIN)

    def _serve_caller(self, caller: PacketSocket) -> None:
        assert self._events is not None
        try:
            greeting, files = caller.receive_with_files()
        except BlockingIOError:
            return
        except OSError:
            self._dismiss(caller)
            return
        try:
            pool = self._pool_of(greeting, files)
        except (OSError, ValueError) as error:
            logger.warning("a caller on this host is turned away: %s", error)
            self._dismiss(caller)
            for file in files:
                os.close(file)
            return
        os.close(files[0])
        fd = caller.fileno()
        del self._callers[fd]
        link = self._links[fd] = SharedLink(caller, greeting, files[1], pool, is_answered=True)
        caller.send(self._greeter.answer(greeting, b""), (self._wake_fd,))
        self._watch(link)
        self._events.on_link(link)

    def _pool_of(self, greeting: bytes, files: list[int]) -> HostPages:
        """Raises ValueError for whoever is no peer, OSError if the pool cannot be mapped."""
        body = self._greeter.check_greeting(self._address, greeting)
        if body is None or len(body) != _GEOMETRY.size:
            raise ValueError("it does not know the cluster's token, or is of another version")
        if len(files) != 2:
            raise ValueError("it has handed over no pool and bell")
        shape = _GEOMETRY.unpack(body)
        ours = self._pool.geometry
        if (shape[0], shape[3]) != (ours.num_layers, ours.head_bytes):
            raise ValueError(f"its pool [layers, pages, heads, head_bytes] is {list(shape)}, which does not fit {ours}")
        view = view_of(files[0], shape[0] * shape[1] * shape[2] * shape[3])
        return HostPages(np.frombuffer(view, np.uint8).reshape(shape))

    def _dismiss(self, caller: PacketSocket) -> None:
        fd = caller.fileno()
        del self._callers[fd]
        self._poller.unregister(fd)
        caller.close()

    def _serve_link(self, link: SharedLink) -> None:
        try:
            if link.socket.wants_to_write:
                link.socket.flush()
                self._watch(link)
            if not link.is_answered:
                self._take_answer(link)
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

    def _take_answer(self, link: SharedLink) -> None:
        packet, files = link.socket.receive_with_files()
        if len(files) == 1 and self._greeter.check_answer(link.greeting, packet) is not None:
            link.is_answered = True
            [link.bell] = files
            os.eventfd_write(link.bell, 1)  # for what was sent before there was a bell
            self._watch(link)
            return
        for file in files:
            os.close(file)
        self._lose(link, "it does not know the cluster's token, or is of another version")

    def _take(self, link: SharedLink, packet: bytes) -> None:
        assert self._events is not None
        kind, body = packet[:8], packet[8:]
        if kind == TAKEN:
            for number in read_taken(body):
                self._let_go(link, number)
        elif kind == OFFERS and link.pool is not None:
            try:
                arrivals = list(read_offers(link, link.pool.geometry, body))
            except ValueError as error:
                self._lose(link, str(error))
                return
            for arrival in arrivals:
                self._events.on_arrival(arrival)
        elif kind == RECORD:
            self._events.on_record(link, body)
        else:
            self._lose(link, "it does not keep to the protocol")

    def _let_go(self, link: SharedLink, number: int) -> None:
        done = link.offers.pop(number, None)
        if done is not None:
            self._num_offers -= 1
            done(None)

    def _lose(self, link: SharedLink, reason: str) -> None:
        assert self._events is not None
        if link.is_alive:
            self.disconnect(link)
            self._events.on_lost(link, reason)

    def spins(self) -> bool:
        """The last sign of life is so fresh that looking again costs less than to be woken."""
        return time.perf_counter() < self._spin_until

    def wait(self, timeout_s: float) -> None:
        if self.spins():
            os.sched_yield()
        else:
            self._poller.poll(min(timeout_s, MAX_SLEEP_S), 1)

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        for link in list(self._links.values()):
            self.disconnect(link)
        for caller in list(self._callers.values()):
            self._dismiss(caller)
        self._listener.close()
        self._poller.close()
        os.close(self._wake_fd)
