"""A router's connection to its place at the keeper. Who keeps what is the estate's business."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipstream.router.takeover.messages import GREETING, MAX_FDS, MESSAGE, PATIENCE_S, Kind


class KeeperLink:
    """Life cycle: `greet`, `receive` till READY, `listen`; then `send` never waits."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(PATIENCE_S)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLOUT)

    def greet(self, path: Path, greeting: Kind, place: int, num_fronts: int) -> None:
        """Says who this is. Blocks. Raises OSError."""
        self._sock.connect(str(path))
        self._sock.send(GREETING.pack(greeting, num_fronts, place))

    def receive(self) -> tuple[Kind, int, list[int]]:
        """A message with its number and descriptors. Blocks. Raises OSError, ValueError; struct.error where the keeper
        has gone."""
        message, fds, _, _ = socket.recv_fds(self._sock, MESSAGE.size, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        kind, number = MESSAGE.unpack(message)
        return Kind(kind), number, list(fds)

    def listen(self) -> None:
        """The keeper says nothing any more, and nobody waits for it."""
        self._sock.setblocking(False)

    def fileno(self) -> int:
        """It is readable once the keeper has gone."""
        return self._sock.fileno()

    @property
    def has_room(self) -> bool:
        """The keeper takes another message at once."""
        return bool(self._poll.poll(0))

    def send(self, kind: Kind, number: int, fds: Sequence[int] = ()) -> bool:
        """False: the keeper is busy. Raises OSError where it has gone."""
        try:
            socket.send_fds(self._sock, [MESSAGE.pack(kind, number)], fds)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # descriptors under way
                return False
            raise
        return True

    def send_last(self, kind: Kind) -> None:
        """Waits till the keeper takes it. Raises OSError."""
        self._sock.settimeout(PATIENCE_S)
        self.send(kind, 0)

    def close(self) -> None:
        """Ends a call that waits in another thread, too."""
        with suppress(OSError):  # not connected, or gone
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
