"""A router's connection to its slot at the socket holder."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipstream.router.http.failover.holder.holder_messages import (
    PATIENCE_S,
    HolderMessageKind,
    receive,
    send,
    send_greeting,
)


class HolderLink:
    """Life cycle: `greet`, `receive` until READY, `end_receiving`; from then on `send` never waits."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(PATIENCE_S)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLOUT)

    def greet(self, path: Path, greeting: HolderMessageKind, slot: int, num_fronts: int) -> None:
        """Says who this is. Blocks. Raises OSError."""
        self._sock.connect(str(path))
        send_greeting(self._sock, greeting, slot, num_fronts)

    def receive(self) -> tuple[HolderMessageKind, int, list[int]]:
        """The kind, the number and the descriptors of a message. Blocks. Raises OSError, also if the holder has gone,
        and ValueError."""
        message = receive(self._sock)
        if message is None:
            raise ConnectionResetError("the holder has gone")
        return message

    def end_receiving(self) -> None:
        """The holder sends nothing after READY: from now on no call waits."""
        self._sock.setblocking(False)

    def fileno(self) -> int:
        """For an event loop: it is readable once the holder has gone, writable while it takes messages."""
        return self._sock.fileno()

    @property
    def has_room(self) -> bool:
        """Whether the holder takes another message at once."""
        return bool(self._poll.poll(0))

    def send(self, kind: HolderMessageKind, number: int, fds: Sequence[int] = ()) -> bool:
        """False: the holder is busy. Raises OSError where it has gone."""
        try:
            send(self._sock, kind, number, fds)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # descriptors under way
                return False
            raise
        return True

    def send_last(self, kind: HolderMessageKind) -> None:
        """Waits until the holder takes it. Raises OSError."""
        self._sock.settimeout(PATIENCE_S)
        self.send(kind, 0)

    def close(self) -> None:
        """Ends a call that waits in another thread, too."""
        with suppress(OSError):  # not connected, or gone
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
