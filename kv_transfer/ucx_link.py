"""One link of the UCX transport: what is on its way, and how much more may be.

Messages between processes of one host are eager: UCX copies them into the receiver's memory as they come, which saves
a handshake a message and is a third faster, but nothing stops a sender whose receiver does not take them. So the
receiver acknowledges what it has taken, and the sender keeps at most `WINDOW` messages unacknowledged:

    sender   posts 1 .. 32, holds 33 ...         posts 33 .. 40
                     \\\\                  ack   /
    receiver           takes 1, 2, .. 8 ------'
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ucxx._lib import libucxx
from ucxx._lib.arr import Array

from slipstream.kv_transfer.frame_socket import FrameSocket
from slipstream.kv_transfer.transport import Buffer, Done

WINDOW = 32
ACKNOWLEDGE_EVERY = 8  # messages; must divide the window, or a sender may wait for the rest for ever
_RECORD, _ACK = b"\0", b"\1"  # what a frame after the greeting begins with


@dataclass(slots=True, eq=False)
class _Operation:
    request: Any
    buffer: Buffer
    done: Done


@dataclass(slots=True, eq=False)
class UcxLink:
    socket: FrameSocket
    worker: Any
    greeting: bytes = b""  # that was sent
    endpoint: Any = None  # as soon as the peer's greeting has told its worker's address
    is_alive: bool = True
    operations: list[_Operation] = field(default_factory=list)
    untaken: set[Any] = field(default_factory=set)  # probed messages that nobody has received yet
    held: deque[tuple[int, Buffer, Done]] = field(default_factory=deque)  # messages to send that the window keeps back
    num_unacknowledged: int = 0
    num_taken: int = 0  # since the last acknowledgement

    @property
    def num_in_flight(self) -> int:
        return len(self.operations) + len(self.held)

    def send(self, tag: int, buffer: Buffer, done: Done) -> None:
        self.held.append((tag, buffer, done))
        self._post()

    def take(self, probed: Any, buffer: Buffer, done: Done) -> None:
        """Receive a message that was probed."""
        self.untaken.remove(probed)
        request = self.worker.tag_recv_with_handle(Array(buffer), probed)
        self.operations.append(_Operation(request, buffer, done))
        self.num_taken += 1
        if self.num_taken == ACKNOWLEDGE_EVERY:
            self.num_taken = 0
            self.socket.send(_ACK)
            with contextlib.suppress(OSError):  # shows when the socket is read
                self.socket.flush()

    def send_record(self, record: bytes) -> None:
        self.socket.send(_RECORD + record)

    def read_frame(self, frame: bytes) -> bytes | None:
        """The record in it, if it is one."""
        if frame == _ACK:
            self.num_unacknowledged = max(0, self.num_unacknowledged - ACKNOWLEDGE_EVERY)
            self._post()
            return None
        return frame.removeprefix(_RECORD)

    def complete(self) -> bool:
        """Take note of the operations that are done."""
        finished: list[_Operation] = []
        going: list[_Operation] = []
        for operation in self.operations:
            (finished if operation.request.completed else going).append(operation)
        if not finished:
            return False
        self.operations = going  # before the callbacks, which may post more
        for operation in finished:
            operation.done(_error_of(operation.request))
        return True

    def give_up(self) -> list[Done]:
        """Whatever is left. The link is down."""
        left = [operation.done for operation in self.operations] + [done for _, _, done in self.held]
        self.operations.clear()
        self.held.clear()
        return left

    def _post(self) -> None:
        while self.held and self.num_unacknowledged < WINDOW:
            tag, buffer, done = self.held.popleft()
            self.num_unacknowledged += 1
            request = self.endpoint.tag_send(Array(buffer), libucxx.UCXXTag(tag))
            self.operations.append(_Operation(request, buffer, done))


def _error_of(request: Any) -> str | None:
    try:
        request.check_error()
    except libucxx.UCXError as error:
        return f"{type(error).__name__}: {error}"
    return None
