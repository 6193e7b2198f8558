"""A router as its socket holder sees it, and clients of its port."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.http.failover.journal import Journal

TIMEOUT_S = 10.0


class Router:
    """A router as far as the socket holder sees it. `kill` closes its descriptors as the system does at a process's
    end."""

    def __init__(self, holder: SocketHolder, slot: int = 0, num_fronts: int = 0) -> None:
        failover = FailoverSession.of_holder(holder.path, slot, num_fronts)
        assert failover is not None
        self.failover = failover
        self.sockets = [*failover.listening, *failover.for_workers]

    def listen(self) -> socket.socket:
        listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.failover.keep_listening([listening])
        self.sockets.append(listening)
        return listening

    def accept(self, listening: socket.socket) -> tuple[socket.socket, int, Journal]:
        sock, _ = listening.accept()
        self.sockets.append(sock)
        kept = self.failover.keep(sock)
        assert kept is not None
        return sock, kept.number, kept.journal

    def kill(self) -> None:
        self.failover.close()
        for sock in self.sockets:
            sock.close()


StartRouter = Callable[..., Router]


def is_closed(client: socket.socket) -> bool:
    """For the client there is an end. Raises TimeoutError if there is none."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def connect(listening: socket.socket) -> socket.socket:
    return socket.create_connection(listening.getsockname(), timeout=TIMEOUT_S)


def accepted(
    router: Router, listening: socket.socket, count: int
) -> Iterator[tuple[socket.socket, socket.socket, int, Journal]]:
    """Connects clients one by one: the client's end, then what `Router.accept` returns."""
    for _ in range(count):
        client = connect(listening)
        yield client, *router.accept(listening)
