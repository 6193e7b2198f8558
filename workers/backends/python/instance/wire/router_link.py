"""The connection to the router. Every thread may send; whichever waits for something reads for all."""

from __future__ import annotations

import socket
from collections import deque
from threading import Condition, Lock
from typing import Any, Callable

from slipstream.workers.backends.python.instance.wire.frames import (
    ConnectionLostError,
    FrameMessage,
    RouterFrameReader,
    frame_parts,
)


class InstanceRouterLink:
    """One connection. A thread that waits becomes the reader, unless another one is; the reader gives each message to
    `dispatch`, and when it has what it waited for, one of the others takes its place.

        wait_until(is_done) --- nobody reads ---> reads, dispatches --- is_done() ---> returns, wakes the others
                            \\-- somebody does ---> waits for its wake-up --^ (looks again)

    So while nothing but the main thread waits, a message costs no change of threads.
    """

    def __init__(self, connection: socket.socket, dispatch: Callable[[FrameMessage], None]) -> None:
        self._socket = connection
        self._frames = RouterFrameReader(connection)
        self._dispatch = dispatch
        self._condition = Condition(Lock())
        self._is_reading = False
        self._on_reader_left: list[Callable[[], None]] = []
        self._send_lock = Lock()
        self._deferred: deque[str] = deque()
        self.is_lost = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Returns when `is_done`. Raises ConnectionLostError."""
        condition = self._condition
        with condition:
            while self._is_reading:
                if is_done():
                    return
                condition.wait()
            if is_done():
                return
            self._is_reading = True
        try:
            while not is_done():
                message = self._frames.read()
                assert message is not None
                self._dispatch(message)
                with condition:
                    condition.notify_all()
        except ConnectionLostError:
            self.is_lost = True
            raise
        finally:
            self._leave()

    def poll(self) -> None:
        """Dispatches what has arrived, without waiting; does nothing if another thread reads."""
        with self._condition:
            if self._is_reading or self.is_lost:
                return
            self._is_reading = True
        try:
            while True:
                message = self._frames.read(socket.MSG_DONTWAIT)
                if message is None:
                    return
                self._dispatch(message)
        except ConnectionLostError:
            self.is_lost = True
        finally:
            self._leave()

    def call_when_reader_leaves(self, callback: Callable[[], None]) -> bool:
        """For an event loop, which reads by itself while no thread does: calls back once when the present reader stops.
        False: there is none."""
        with self._condition:
            if self._is_reading:
                self._on_reader_left.append(callback)
            return self._is_reading

    def send(self, head: str, payload: list[Any], payload_bytes: int) -> None:
        """Sends a frame; to a router that is gone, nothing."""
        frame = frame_parts(head, payload, payload_bytes)
        with self._send_lock:
            self._send_parts(*frame)
        if self._deferred:
            self._send_deferred()

    def send_soon(self, head: str) -> None:
        """Sends a frame without ever waiting for a lock: for finalizers, which may interrupt a `send`."""
        self._deferred.append(head)
        self._send_deferred()

    def close(self) -> None:
        self.is_lost = True
        self._socket.close()

    def _leave(self) -> None:
        with self._condition:
            self._is_reading = False
            callbacks, self._on_reader_left = self._on_reader_left, []
            self._condition.notify_all()
        for callback in callbacks:
            callback()

    def _send_deferred(self) -> None:
        while self._deferred and self._send_lock.acquire(blocking=False):
            try:
                while self._deferred:
                    self._send_parts(*frame_parts(self._deferred.popleft(), [], 0))
            finally:
                self._send_lock.release()

    def _send_parts(self, parts: list[Any], num_bytes: int) -> None:
        if self.is_lost:
            return
        try:
            num_sent = self._socket.sendmsg(parts)
            while num_sent < num_bytes:  # a payload beyond the socket's buffer
                parts = remaining(parts, num_sent)
                num_bytes -= num_sent
                num_sent = self._socket.sendmsg(parts)
        except OSError:
            self.is_lost = True


def remaining(parts: list[Any], num_sent: int) -> list[Any]:
    """What is left of the pieces when so many bytes have gone."""
    left = []
    for part in parts:
        view = memoryview(part).cast("B")
        if num_sent < len(view):
            left.append(view[num_sent:])
        num_sent = max(0, num_sent - len(view))
    return left


def connect(address: str) -> socket.socket:
    """A connection to the router's instance port. Raises OSError."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address[len("unix:") :])
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
