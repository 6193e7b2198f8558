"""The UCX transport: one TCP connection and one UCX worker for each link.

    TCP       a greeting each way, with the address of the end's UCX worker, then records. Its end is the end of the
              link: the kernel reports the death of a process at once, whatever state that process left UCX in.
    UCX       tagged messages, over shared memory on one host and TCP or RDMA between hosts.

What we have learnt about UCX, which explains the structure of this file:

- A worker for each link, because a worker's shared-memory FIFO does not survive its writers. A process that is killed
  (or stopped) between claiming a place in it and filling that place leaves a hole that the reader waits at for ever,
  and with one worker for all links that is the end of *all* of them. So the FIFO is given up along with the link.
- Endpoint error handling stays on. Without it UCX may pick CMA, and then the death of a peer in mid-copy is a fatal
  error in the *survivor*.
- The thread sleeps on the workers' event fds; an idle agent costs nothing. But two ends that sleep after every
  fragment wake each other by system call for each of them (0.5 GB/s). Yielding the processor for a few dozen
  microseconds after the last sign of life, before sleeping, brings 8 to 10 GB/s on the same two cores.
- Messages are UCX's own calls (`ucp_messages.py`) and not ucxx's, which has none for a datatype of ours. Completion is
  read off the requests, of which there are few.
- A message probed with `remove` is ours and waits for as long as we like; for rendezvous messages its bytes are
  still at the sender.
- UCX aborts the process when it is given an address of a form that it does not know, which its first byte says. So that
  is compared with our own, and UCX looks at an address only if a caller has begun with our greeting, which takes the
  token: port scanners call everywhere.
- `UCXEndpoint.close()` does not force and would wait for a stalled peer, and on an endpoint that has failed it returns
  a request around a null pointer that crashes when freed. `close_blocking` forces and is safe in both cases.

A link costs about 12 MiB of /dev/shm, ten file descriptors and 12 ms to set up.
"""

from __future__ import annotations

import logging
import os
import select
import time

import numpy as np
from ucxx._lib import libucxx

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Done, Link, MessageArrival, TransportError, TransportEvents
from slipstream.kv_transfer.memory.page_stream import StreamLibrary
from slipstream.kv_transfer.sockets.frame_links import FrameLinks
from slipstream.kv_transfer.sockets.frame_socket import FrameSocket
from slipstream.kv_transfer.ucx.ucp_messages import Content, Ucp
from slipstream.kv_transfer.ucx.ucx_context import UcxContexts
from slipstream.kv_transfer.ucx.ucx_link import UcxLink

log = logging.getLogger(__name__)

SPIN_S = 50e-6
LOOK_S = 200e-6  # how long sockets can wait, and requests that complete in a call that reported no progress
MIN_ADDRESS_BYTES, MAX_ADDRESS_BYTES = 9, 8192  # a form and an id; a few dozen bytes for each device of the host
MIN_STALL_S, MAX_STALL_S = 50e-6, 5e-3
MAX_SLEEP_S = 1.0  # UCX's event fd is not guaranteed to fire for everything; ucxx's own threads wake as often
END_PROGRESS_CALLS = 1000  # the most that it takes until a closed endpoint's requests come back


class UcxTransport:
    """Listens on `host`, which is also the address for its peers. `tls` is UCX_TLS, `token` the secret that peers must
    know. A host that is silent for `silence_s` counts as gone. Raises TransportError."""

    def __init__(self, host: str, tls: str, token: str = "", silence_s: float = 5.0) -> None:
        self._contexts = UcxContexts(tls)
        self._poller = select.epoll()
        self._links: FrameLinks[UcxLink] = FrameLinks(host, silence_s, token, self._poller, self)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake_fd, select.EPOLLIN)
        self._others: list[int] = []
        self._events: TransportEvents | None = None
        self._fresh = False  # whether something was posted since `progress` last looked, for which no event may come
        self._spin_until = 0.0
        self._next_look = 0.0
        self._stall_s = MIN_STALL_S
        self._ucp = Ucp()

    @property
    def address(self) -> TransferAddress:
        return self._links.address

    @property
    def num_in_flight(self) -> int:
        return sum(link.num_in_flight for link in self._links)

    def start(self, events: TransportEvents) -> None:
        self._events = events

    def takes_streams(self, library: StreamLibrary) -> bool:
        """Whether messages may be streams of `library`: yes if all transports copy with the processor, no if a network
        card would read and write contiguous memory by itself. Raises TransportError."""
        if not self._contexts.only_copy:
            return False
        self._ucp.use_streams(library)
        return True

    def wake_for(self, fd: int) -> None:
        """Make `wait` also end when `fd` is readable."""
        self._poller.register(fd, select.EPOLLIN)
        self._others.append(fd)

    def connect(self, address: TransferAddress) -> Link:
        socket = self._links.connect(address)
        try:
            link = self._open_link(socket)
        except TransportError:
            socket.close()
            raise
        self._links.greet(link, address, bytes(link.worker.address))
        return link

    def disconnect(self, link: Link) -> None:
        assert isinstance(link, UcxLink)
        if not link.is_alive:
            return
        link.is_alive = False
        self._poller.unregister(link.worker.epoll_file_descriptor)
        self._links.close_link(link)
        if link.endpoint is not None:
            link.endpoint.close_blocking()
        for probed in link.untaken.copy():
            link.take(probed, np.empty(probed.num_bytes, np.uint8), _forget)
        link.cancel()
        for _ in range(END_PROGRESS_CALLS):
            if not link.operations:
                break
            link.worker.progress_once()
            link.complete()
        # Whatever UCX still holds ends with the worker, and only then may its buffers be reused.
        abandoned = link.give_up()
        link.endpoint = link.worker = None
        for done in abandoned:
            done("the link is down")

    def send_record(self, link: Link, record: bytes) -> None:
        assert isinstance(link, UcxLink)
        if link.is_alive:
            link.send_record(record)
            self._links.watch(link)

    def _open_link(self, socket: FrameSocket) -> UcxLink:
        """A new link. Raises TransportError if there is not enough memory or there are not enough file descriptors."""
        worker = self._contexts.make_worker()
        link = UcxLink(socket, worker, self._ucp)
        self._poller.register(worker.epoll_file_descriptor, select.EPOLLIN)
        return link

    def send(self, link: Link, tag: int, content: Content, done: Done) -> None:
        assert isinstance(link, UcxLink)
        if link.endpoint is None:
            done("the link is down" if not link.is_alive else "the link is not up yet")
            return
        link.send(tag, content, done)
        if link.socket.wants_to_write:
            self._links.watch(link)
        self._fresh = True

    def receive(self, arrival: MessageArrival, content: Content, done: Done) -> None:
        link, probed = arrival.link, arrival.handle
        assert isinstance(link, UcxLink)
        if arrival.num_bytes > len(content):
            raise ValueError(f"a message of {arrival.num_bytes} bytes does not fit in {len(content)}")
        if not link.is_alive:
            done("the link is down")
            return
        link.take(probed, content, done)
        if link.socket.wants_to_write:
            self._links.watch(link)
        self._fresh = True

    def progress(self) -> bool:
        now = time.perf_counter()
        # A message that is held back waits for an acknowledgement, which comes over the socket.
        is_look = self._fresh or now >= self._next_look or any(link.held for link in self._links)
        busy = False
        if is_look:
            self._fresh = False
            self._next_look = now + LOOK_S
            busy = self._serve_sockets()
        for link in list(self._links):
            moved = False
            while link.is_alive and link.worker.progress_once():
                moved = True
            if moved or is_look:
                busy |= moved
                busy |= link.is_alive and link.complete()
                busy |= link.is_alive and self._probe(link)
        if busy:
            self._spin_until = now + SPIN_S
            self._stall_s = MIN_STALL_S
        return busy

    def _probe(self, link: UcxLink) -> bool:
        assert self._events is not None
        busy = False
        while link.is_alive and (probed := link.probe()) is not None:
            arrival = MessageArrival(link, probed.tag, probed.num_bytes, probed)
            self._events.on_arrival(arrival)
            busy = True
        return busy

    def _serve_sockets(self) -> bool:
        assert self._events is not None
        busy = False
        for fd, _ in self._poller.poll(0):
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif self._links.serve(fd):
                busy = True
            # otherwise an event of a worker or of a descriptor given to `wake_for`, which are handled in any case
        return busy

    def on_call(self, connection: FrameSocket, body: bytes) -> tuple[UcxLink, bytes]:
        link = self._open_link(connection)
        return link, bytes(link.worker.address)

    def on_open(self, link: UcxLink, body: bytes) -> None:
        assert self._events is not None
        if not link.greeting:
            self._events.on_link(link)
        self._reach(link, body)

    def on_frame(self, link: UcxLink, frame: bytes) -> None:
        assert self._events is not None
        if (record := link.read_frame(frame)) is not None:
            self._events.on_record(link, record)

    def _reach(self, link: UcxLink, worker_address: bytes) -> None:
        form = bytes(link.worker.address)[:1]
        if not (MIN_ADDRESS_BYTES <= len(worker_address) <= MAX_ADDRESS_BYTES and worker_address.startswith(form)):
            self.on_broken(link, f"its UCX address of {len(worker_address)} bytes has another form than ours")
            return
        try:
            address = libucxx.UCXAddress.create_from_buffer(worker_address)
            link.endpoint = libucxx.UCXEndpoint.create_from_worker_address(link.worker, address, True)
            link.is_within_host = link.socket.is_within_host
        except (libucxx.UCXError, RuntimeError) as error:
            self.on_broken(link, f"UCX cannot reach it: {error}")

    def on_broken(self, link: UcxLink, reason: str) -> None:
        assert self._events is not None
        self.disconnect(link)
        self._events.on_lost(link, reason)

    def wait(self, timeout_s: float) -> None:
        if self._fresh:
            return
        if time.perf_counter() < self._spin_until:
            os.sched_yield()
        elif all(link.worker.arm() for link in self._links):
            self._poller.poll(min(timeout_s, MAX_SLEEP_S), 1)
            self._next_look = 0.0
        else:
            # Something is queued behind a full shared-memory FIFO. UCX has no event for when it is emptied, and refuses
            # to sleep, so look again soon, and less often if the peer is not running at all.
            select.select([self._wake_fd, *self._others], [], [], min(timeout_s, self._stall_s))
            self._stall_s = min(2 * self._stall_s, MAX_STALL_S)

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        for link in list(self._links):
            self.disconnect(link)
        self._links.close()
        self._poller.close()
        os.close(self._wake_fd)
        del self._contexts


def _forget(error: str | None) -> None:
    """The callback for messages of a link that has ended."""
