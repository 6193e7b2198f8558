"""Accepts connections even if file descriptors have run out."""

from __future__ import annotations

import errno
import logging
import os
import socket

log = logging.getLogger(__name__)


class SpareFile:
    """A descriptor in reserve. If a connection cannot be accepted for lack of descriptors, this one is closed for a
    moment to accept the connection and end it. Otherwise the waiting connection would wake the listener for ever."""

    def __init__(self) -> None:
        self._file: int | None = _open()

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """The next waiting connection, if any. `listener` is non-blocking."""
        while True:
            try:
                connection, _ = listener.accept()
                return connection
            except OSError as error:
                # All other errors mean that there is no connection, or no longer.
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._turn_away(listener, error):
                    return None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _turn_away(self, listener: socket.socket, reason: OSError) -> bool:
        if self._file is None:
            return False
        log.warning("a peer that connects is turned away: %s", reason.strerror)
        self.close()
        try:
            listener.accept()[0].close()
        except OSError:
            return False
        finally:
            self._file = _open()
        return True


def _open() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
