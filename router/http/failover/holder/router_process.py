"""The router at the other end of a link to the socket holder, as a process that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from contextlib import suppress

PEER = struct.Struct("=3i")  # process, user and group at the other end of a socket (SO_PEERCRED)


class RouterProcess:
    """Valid until it is closed. A pidfd tells it from a later process with the same number."""

    def __init__(self, link: socket.socket) -> None:
        """Raises OSError."""
        self.pid, _, _ = PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        self._lock = threading.Lock()  # of the descriptor, whose number may be another one's after it was closed
        self._pidfd: int | None = None
        with suppress(OSError):  # it has gone, or lives in another namespace
            self._pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """Nothing happens where that cannot be done from here."""
        with self._lock:
            if self._pidfd is not None and self.pid != os.getpid():
                with suppress(OSError):  # it has gone, or is another user's
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
