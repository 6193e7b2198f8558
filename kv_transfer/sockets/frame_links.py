"""The control connections of a transport between hosts: one TCP connection for each link.

    connecting end                          listening end
      | greeting: proof, body ---------------> |      `on_call`, then `on_open`
      | <---------------- answer: proof, body  |      `on_open`
      | <------------- frames ---------------> |      `on_frame`

The end of its connection is the end of a link: the kernel reports the death of a process at once, in whatever state
that process has left its data plane.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import TransportError
from slipstream.kv_transfer.sockets.frame_socket import FrameListener, FrameSocket
from slipstream.kv_transfer.sockets.link_authentication import LinkAuthenticator
from slipstream.kv_transfer.sockets.pending_handshakes import PendingHandshakes

log = logging.getLogger(__name__)


class FrameLink(Protocol):
    """What `FrameLinks` needs of a transport's links."""

    @property
    def socket(self) -> FrameSocket: ...

    @property
    def is_alive(self) -> bool: ...

    greeting: bytes  # the one that was sent; empty at the end that was called
    is_answered: bool  # so frames may be sent and received


L = TypeVar("L", bound=FrameLink)


class FrameLinkEvents(Protocol[L]):
    """Called from within `FrameLinks.serve`."""

    def on_call(self, connection: FrameSocket, body: bytes) -> tuple[L, bytes]:
        """A peer has connected, with the body of its greeting. Returns a link, which belongs to the transport from now
        on, and the body of the answer. Raises TransportError if there can be no link."""

    def on_open(self, link: L, body: bytes) -> None:
        """The other end's greeting or answer had this body, and our answer is on its way."""

    def on_frame(self, link: L, frame: bytes) -> None: ...

    def on_broken(self, link: L, reason: str) -> None:
        """The connection has ended. `close_link` is still to be called."""


class FrameLinks(Generic[L]):
    """Listens on `host`, which is also what peers are given to connect to, and watches all links with `poller`. `token`
    is the secret that peers must know. A host that is silent for `silence_s` counts as gone. Raises TransportError."""

    def __init__(
        self, host: str, silence_s: float, token: str, poller: select.epoll, events: FrameLinkEvents[L]
    ) -> None:
        self._silence_s = silence_s
        self._authenticator = LinkAuthenticator(token)
        self._poller = poller
        self._events = events
        try:
            self._listener = FrameListener(host, silence_s)
        except OSError as error:
            raise TransportError(f"cannot listen on {host}: {error}") from error
        poller.register(self._listener.fileno(), select.EPOLLIN)
        self._pending_handshakes: PendingHandshakes[FrameSocket] = PendingHandshakes(poller)
        self._links: dict[int, L] = {}  # by the file descriptors of their sockets

    @property
    def address(self) -> TransferAddress:
        return self._listener.address

    def __iter__(self) -> Iterator[L]:
        """The links, none of which may end meanwhile."""
        return iter(self._links.values())

    def connect(self, address: TransferAddress) -> FrameSocket:
        """Begins to connect. Raises TransportError if the address is not valid."""
        try:
            return FrameSocket.connect(address, self._silence_s)
        except OSError as error:
            raise TransportError(f"cannot connect to {address.host}:{address.port}: {error}") from error

    def greet(self, link: L, address: TransferAddress, body: bytes) -> None:
        """Takes in a link to a peer that we call."""
        link.greeting = self._authenticator.greet(address, body)
        self._links[link.socket.fileno()] = link
        self._poller.register(link.socket.fileno(), select.EPOLLIN)
        self.send(link, link.greeting)

    def send(self, link: L, frame: bytes) -> None:
        """Queues a frame for a link that is alive."""
        link.socket.send(frame)
        self.watch(link)

    def watch(self, link: L) -> None:
        """To be called after something was sent on the link's socket."""
        events = select.EPOLLIN | (select.EPOLLOUT if link.socket.wants_to_write else 0)
        self._poller.modify(link.socket.fileno(), events)

    def close_link(self, link: L) -> None:
        fd = link.socket.fileno()
        self._poller.unregister(fd)
        link.socket.close()
        del self._links[fd]

    def close(self) -> None:
        """The links are closed already."""
        self._pending_handshakes.close()
        self._listener.close()

    def serve(self, fd: int) -> bool:
        """Handles an event, if the file descriptor is one of ours."""
        if (link := self._links.get(fd)) is not None:
            self._serve_link(link)
        elif fd == self._listener.fileno():
            while (accepted := self._listener.accept()) is not None:
                self._pending_handshakes.add(accepted)
        elif (caller := self._pending_handshakes.get(fd)) is not None:
            self._serve_caller(caller)
        else:
            return False
        return True

    def _serve_link(self, link: L) -> None:
        try:
            link.socket.flush()
            frames = link.socket.receive()
        except OSError as error:
            self._events.on_broken(link, error.strerror or str(error))
            return
        if frames is None:
            self._events.on_broken(link, "the connection was closed")
            return
        self.watch(link)
        self._take(link, frames)

    def _serve_caller(self, caller: FrameSocket) -> None:
        try:
            frames = caller.receive()
        except OSError:
            frames = None
        if frames == []:
            return
        body = self._authenticator.check_greeting(self.address, frames[0]) if frames else None
        if frames is None or body is None:
            self._pending_handshakes.dismiss(caller)
            return
        try:
            link, answer = self._events.on_call(caller, body)
        except TransportError as error:
            log.warning("a peer that connects is turned away: %s", error)
            self._pending_handshakes.dismiss(caller)
            return
        self._pending_handshakes.release(caller)
        self._links[caller.fileno()] = link
        link.is_answered = True
        caller.send(self._authenticator.answer(frames[0], answer))
        self._events.on_open(link, body)
        self._take(link, frames[1:])
        if link.is_alive:
            self.watch(link)

    def _take(self, link: L, frames: list[bytes]) -> None:
        for frame in frames:
            if not link.is_alive:
                return
            if link.is_answered:
                self._events.on_frame(link, frame)
            elif (body := self._authenticator.check_answer(link.greeting, frame)) is not None:
                link.is_answered = True
                self._events.on_open(link, body)
            else:
                self._events.on_broken(link, "it is no transfer agent of this version and cluster")
