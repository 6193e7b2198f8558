"""How links between ranks of one host begin.

Links are Unix sockets of type SEQPACKET, under a name that cannot be guessed without the cluster's token. Both ends
check the other's user id and its proof (`link_authentication.py`). The view of the pool that is handed over can be
neither written nor shrunk (`pool_memory.py`).
"""

from __future__ import annotations

import logging
import os
import select

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import TransportError
from slipstream.kv_transfer.memory.host_pages import HostPagePool, HostPages
from slipstream.kv_transfer.shared_memory.shm_link import ShmLink, encode_geometry, map_pool
from slipstream.kv_transfer.sockets.link_authentication import LinkAuthenticator
from slipstream.kv_transfer.sockets.packet_socket import PacketListener, PacketSocket
from slipstream.kv_transfer.sockets.pending_handshakes import PendingHandshakes

log = logging.getLogger(__name__)


class ShmListener:
    """Listens for callers to `address`, watched by `poller`. Hands out `event_fd`, an eventfd, and a view of `pool`.
    Raises TransportError if the name is taken."""

    def __init__(
        self, address: TransferAddress, pool: HostPagePool, token: str, poller: select.epoll, event_fd: int
    ) -> None:
        self._address = address
        self._pool = pool
        self._authenticator = LinkAuthenticator(token)
        self._event_fd = event_fd
        try:
            self._listener = PacketListener(self._authenticator.socket_name(address))
        except OSError as error:
            raise TransportError(f"no socket for peers on this host: {error}") from error
        poller.register(self._listener.fileno(), select.EPOLLIN)
        self._pending_handshakes: PendingHandshakes[PacketSocket] = PendingHandshakes(poller)

    def call(self, address: TransferAddress) -> ShmLink:
        """Raises TransportError if no peer of this host and user is there, or if this rank has no shared memory."""
        memory = self._pool.memory
        if memory is None or memory.file is None:
            raise TransportError("the pool of this rank is not in shared memory")
        try:
            connection = PacketSocket.connect(self._authenticator.socket_name(address))
        except OSError as error:
            raise TransportError(f"{address.host}:{address.port} is not on this host: {error}") from error
        greeting = self._authenticator.greet(address, encode_geometry(self._pool.geometry))
        connection.send(greeting, (memory.file, self._event_fd))
        return ShmLink(connection, greeting)

    def take_answer(self, link: ShmLink) -> bool:
        """Reads the answer to our call. Returns False if it is not valid. Raises BlockingIOError if there is none yet,
        OSError."""
        packet, files = link.socket.receive_with_files()
        if len(files) == 1 and self._authenticator.check_answer(link.greeting, packet) is not None:
            link.is_answered = True
            [link.event_fd] = files
            os.eventfd_write(link.event_fd, 1)  # for messages from before the peer had sent its eventfd
            return True
        for file in files:
            os.close(file)
        return False

    def serve(self, fd: int) -> ShmLink | None:
        """Handles an event of the listener or of a caller, if the file descriptor belongs to one. Returns the link that
        has come of it, if any; its socket is registered with the poller."""
        if fd == self._listener.fileno():
            while (caller := self._listener.accept()) is not None:
                self._pending_handshakes.add(caller)
            return None
        known = self._pending_handshakes.get(fd)
        return None if known is None else self._let_in(known)

    def close(self) -> None:
        self._pending_handshakes.close()
        self._listener.close()

    def _let_in(self, caller: PacketSocket) -> ShmLink | None:
        try:
            greeting, files = caller.receive_with_files()
        except BlockingIOError:
            return None
        except OSError:
            self._pending_handshakes.dismiss(caller)
            return None
        try:
            pool = self._pool_of(greeting, files)
        except (OSError, ValueError) as error:
            log.warning("a caller on this host is turned away: %s", error)
            self._pending_handshakes.dismiss(caller)
            for file in files:
                os.close(file)
            return None
        os.close(files[0])
        self._pending_handshakes.release(caller)
        caller.send(self._authenticator.answer(greeting, b""), (self._event_fd,))
        return ShmLink(caller, greeting, files[1], pool, is_answered=True)

    def _pool_of(self, greeting: bytes, files: list[int]) -> HostPages:
        """The pool of a caller. Raises ValueError if it is not a peer, OSError if its pool cannot be mapped."""
        body = self._authenticator.check_greeting(self._address, greeting)
        if body is None:
            raise ValueError("it does not know the cluster's token, or is of another version")
        if len(files) != 2:
            raise ValueError("it has sent no pool and no eventfd")
        return map_pool(files[0], body, self._pool.geometry)
