"""The transport over torch.distributed: NCCL between GPUs, gloo between CPUs.

NCCL knows neither tags nor arrivals: the n-th send from a rank to another meets the n-th receive. So everything but the
pages goes over the link's TCP connection, and there the receiver decides the order:

    connecting end                          listening end
      | greeting: backend -----------------> |
      | <------------- answer: rendezvous    |     both join the link's group (`pair_group`), each in a thread
      | header: number, tag, size ---------> |     on_arrival; the receiver may take its time and its pick
      | <---------------------------- grant  |     posted together with the matching receive of the data
      | ======== message ==================> |     messages are sent in the order of the grants

Messages go from the end that has connected to the end that was called; records go both ways. The death of a process is
noticed at once, because its TCP connection ends.

The group's own connections are neither authenticated nor encrypted, like everything of torch.distributed, so the
network between the workers must be trusted.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Buffer, Done, Link, MessageArrival, TransportError, TransportEvents
from slipstream.kv_transfer.nccl.pair_group import GroupSettings, PairGroup, Rendezvous
from slipstream.kv_transfer.sockets.frame_links import FrameLinks
from slipstream.kv_transfer.sockets.frame_socket import FrameSocket

MAX_SLEEP_S = 60.0
_RECORD, _HEADER, _GRANT = b"\0", b"\1", b"\2"  # the first byte of a frame
_HEAD = struct.Struct("<QQQ")  # number, tag, size in bytes
_NUMBER = struct.Struct("<Q")
_RENDEZVOUS = struct.Struct("<HQ")  # the store's port, the link's number


@dataclass(slots=True, eq=False)
class NcclLink:
    socket: FrameSocket
    greeting: bytes = b""
    is_answered: bool = False
    is_alive: bool = True
    address: TransferAddress | None = None  # of the peer, if we have called it
    rendezvous: Rendezvous | None = None  # if the peer has called us
    group: PairGroup | None = None
    num_sent: int = 0
    ungranted: dict[int, tuple[Buffer, Done]] = field(default_factory=dict)  # by number


class NcclTransport:
    """Listens on the settings' host. `token` is the secret that peers must know. A host that is silent for `silence_s`
    counts as gone. Raises TransportError."""

    def __init__(self, settings: GroupSettings, token: str, silence_s: float) -> None:
        if settings.backend == "nccl" and not dist.is_nccl_available():
            raise TransportError("transport nccl: this PyTorch has no NCCL, which pages in device memory need")
        if settings.backend == "nccl":
            # Else NCCL's watchdog ends the process, together with all other links, when one peer is gone. The group of
            # a worker's ranks, which was made before, has read the setting already.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        self._settings = settings
        self._poller = select.epoll()
        self._links: FrameLinks[NcclLink] = FrameLinks(settings.host, silence_s, token, self._poller, self)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake_fd, select.EPOLLIN)
        self._store: TCPStore | None = _open_store(settings.host)
        self._store_port = self._store.port
        self._num_called = 0
        self._num_in_flight = 0
        self._calls: deque[Callable[[], None]] = deque()  # from the threads of links
        self._groups: list[PairGroup] = []  # whose threads may still run
        self._lock = threading.Lock()  # orders `wake` against `close`
        self._is_closed = False
        self._events: TransportEvents | None = None
        atexit.register(self._join_ended)  # if it is not closed

    @property
    def address(self) -> TransferAddress:
        return self._links.address

    @property
    def num_in_flight(self) -> int:
        return self._num_in_flight

    def start(self, events: TransportEvents) -> None:
        self._events = events

    def connect(self, address: TransferAddress) -> Link:
        link = NcclLink(self._links.connect(address), address=address)
        self._links.greet(link, address, self._settings.backend.encode())
        return link

    def disconnect(self, link: Link) -> None:
        assert isinstance(link, NcclLink)
        if not link.is_alive:
            return
        link.is_alive = False
        self._links.close_link(link)
        abandoned = [done for _, done in link.ungranted.values()]
        link.ungranted.clear()
        if link.group is not None:
            abandoned += link.group.end()
        for done in abandoned:  # later, so that what is said first is why the link is down
            self._post(partial(done, "the link is down"))

    def send_record(self, link: Link, record: bytes) -> None:
        assert isinstance(link, NcclLink)
        if link.is_alive:
            self._links.send(link, _RECORD + record)

    def send(self, link: Link, tag: int, buffer: Buffer, done: Done) -> None:
        """On a link that `connect` made, after its first record was answered."""
        assert isinstance(link, NcclLink)
        if not link.is_alive or link.address is None:
            done("the link is down" if not link.is_alive else "messages go to the end that was called")
            return
        link.num_sent += 1
        link.ungranted[link.num_sent] = buffer, self._counted(done)
        self._links.send(link, _HEADER + _HEAD.pack(link.num_sent, tag, len(buffer)))

    def receive(self, arrival: MessageArrival, buffer: Buffer, done: Done) -> None:
        link = arrival.link
        assert isinstance(link, NcclLink)
        if arrival.num_bytes > len(buffer):
            raise ValueError(f"a message of {arrival.num_bytes} bytes does not fit in {len(buffer)}")
        if not link.is_alive or link.group is None:
            done("the link is down")
            return
        # Grants and receives have the same order.
        link.group.add(buffer[: arrival.num_bytes], self._counted(done))
        self._links.send(link, _GRANT + _NUMBER.pack(arrival.handle))

    def _counted(self, done: Done) -> Done:
        self._num_in_flight += 1
        return partial(self._finish, done)

    def _finish(self, done: Done, error: str | None) -> None:
        self._num_in_flight -= 1
        done(error)

    def progress(self) -> bool:
        busy = bool(self._calls)
        self._run_calls()  # first: a message that was sent counts, even if the peer has left since
        for fd, _ in self._poller.poll(0):
            busy = True  # also when awoken: the agent may have been closed
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            else:
                self._links.serve(fd)
        return busy

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def wait(self, timeout_s: float) -> None:
        self._poller.poll(min(timeout_s, MAX_SLEEP_S), 1)

    def wake(self) -> None:
        with self._lock:  # the thread of a link may outlive the transport
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        for link in list(self._links):
            self.disconnect(link)
        self._join_ended()
        atexit.unregister(self._join_ended)
        self._run_calls()
        self._links.close()
        self._poller.close()
        self._store = None  # ends its thread
        with self._lock:
            self._is_closed = True
            os.close(self._wake_fd)

    def _join_ended(self) -> None:
        """Waits for the threads of groups that have ended: one that destroys its group while the interpreter ends does
        not get the GIL back, and that aborts the process."""
        for group in self._groups:
            group.join()

    def _post(self, call: Callable[[], None]) -> None:
        """Any thread."""
        self._calls.append(call)
        self.wake()

    def on_call(self, connection: FrameSocket, body: bytes) -> tuple[NcclLink, bytes]:
        if body != self._settings.backend.encode():
            raise TransportError(f"it moves pages with {body[:16]!r}, this rank with {self._settings.backend}")
        self._num_called += 1
        rendezvous = Rendezvous(TransferAddress(self._settings.host, self._store_port), self._num_called)
        return NcclLink(connection, rendezvous=rendezvous), _RENDEZVOUS.pack(self._store_port, self._num_called)

    def on_open(self, link: NcclLink, body: bytes) -> None:
        assert self._events is not None
        if link.rendezvous is not None:
            self._join(link, link.rendezvous, 1)
            self._events.on_link(link)
        elif link.address is not None and len(body) == _RENDEZVOUS.size:
            port, number = _RENDEZVOUS.unpack(body)
            self._join(link, Rendezvous(TransferAddress(link.address.host, port), number), 0)
        else:
            self.on_broken(link, f"an answer of {len(body)} bytes")

    def _join(self, link: NcclLink, rendezvous: Rendezvous, rank: int) -> None:
        link.group = PairGroup(self._settings, rendezvous, rank, self._post, partial(self.on_broken, link))
        self._groups = [group for group in self._groups if group.is_running]
        self._groups.append(link.group)

    def on_frame(self, link: NcclLink, frame: bytes) -> None:
        assert self._events is not None
        kind, body = frame[:1], frame[1:]
        if kind == _RECORD:
            self._events.on_record(link, body)
        elif kind == _HEADER and len(body) == _HEAD.size and link.address is None:
            number, tag, num_bytes = _HEAD.unpack(body)
            self._events.on_arrival(MessageArrival(link, tag, num_bytes, number))
        elif kind == _GRANT and len(body) == _NUMBER.size and link.group is not None:
            if (granted := link.ungranted.pop(_NUMBER.unpack(body)[0], None)) is not None:
                link.group.add(*granted)
        else:
            self.on_broken(link, "it does not keep to the protocol")

    def on_broken(self, link: NcclLink, reason: str) -> None:
        assert self._events is not None
        if link.is_alive:
            self.disconnect(link)
            self._events.on_lost(link, reason)


def _open_store(host: str) -> TCPStore:
    """The store at which the ends of links to this rank meet. Raises TransportError."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, 0), family=family)
        port = listener.getsockname()[1]
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    except (OSError, RuntimeError) as error:
        raise TransportError(f"no store for torch.distributed on {host}: {error}") from error
