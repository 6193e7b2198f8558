"""One link of the UCX transport: what is on its way, and how much more may be sent.

Messages between processes of one host are eager: UCX copies them into the receiver's memory as they arrive. This saves
a handshake per message and is a third faster, but nothing stops a sender whose receiver does not take its messages. So
the receiver acknowledges how many it has taken, every `ACKNOWLEDGE_BYTES`, and the sender holds back what does not fit
into a window of unacknowledged messages:

    sender   posts 1 .. 8, holds 9 ...       posts 9, 10
                     \\\\               2   /
    receiver           takes 1, 2 .. -------'

On one host, the acknowledgement also names the receiver's core, so that the sender can leave that core
(`cpu_cores.py`).

The window is a fraction of the L3 cache, so that a message is still in it when it is unpacked. And it is no larger than
the receiver's shared memory for it: several messages may have arrived in part, and each must find room for its rest.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from slipstream.kv_transfer.api.transport import Done
from slipstream.kv_transfer.sockets.cpu_cores import current_core, leave_core
from slipstream.kv_transfer.sockets.frame_socket import FrameSocket
from slipstream.kv_transfer.ucx.ucp_messages import Content, Probed, Ucp, UcxRequest

SEGMENT_BYTES = 32 << 10  # what UCX cuts messages into; it counts the bytes of one in 16 bits
SEGMENT_PAYLOAD_BYTES = SEGMENT_BYTES - 1024  # whole blocks of a stream (`page_stream.cpp`), beside UCX's headers
WINDOW_BYTES = 8 << 20  # in whole segments
ACKNOWLEDGE_BYTES = 512 << 10
_RECORD, _ACK = b"\0", b"\1"  # the first byte of a frame after the greeting
_TAKEN = struct.Struct("<II")  # how many messages were taken, and the receiver's core
_NO_CORE = (1 << 32) - 1


@dataclass(slots=True, eq=False)
class _Operation:
    request: UcxRequest
    done: Done


@dataclass(slots=True, eq=False)
class UcxLink:
    socket: FrameSocket
    worker: Any
    ucp: Ucp
    greeting: bytes = b""  # the one that was sent
    is_answered: bool = False
    endpoint: Any = None  # made when the peer's greeting has brought the address of its worker
    is_alive: bool = True
    is_within_host: bool = False
    operations: list[_Operation] = field(default_factory=list)
    untaken: set[Probed] = field(default_factory=set)  # probed messages that have not been received yet
    held: deque[tuple[int, Content, Done]] = field(default_factory=deque)  # messages that the window keeps back
    unacknowledged: deque[int] = field(default_factory=deque)  # the size of each message that was sent
    num_unacknowledged_bytes: int = 0
    num_taken: int = 0  # messages since the last acknowledgement
    num_taken_bytes: int = 0

    @property
    def num_in_flight(self) -> int:
        return len(self.operations) + len(self.held)

    def send(self, tag: int, content: Content, done: Done) -> None:
        self.held.append((tag, content, done))
        self._post()

    def probe(self) -> Probed | None:
        """The next message that has not been taken yet."""
        if (probed := self.ucp.probe(self.worker)) is not None:
            self.untaken.add(probed)
        return probed

    def take(self, probed: Probed, content: Content, done: Done) -> None:
        """Receive a message that was probed."""
        self.untaken.remove(probed)
        self.operations.append(_Operation(self.ucp.receive(self.worker, probed, content), done))
        self.num_taken += 1
        self.num_taken_bytes += _in_segments(probed.num_bytes)
        if self.num_taken_bytes >= ACKNOWLEDGE_BYTES:
            core = current_core() if self.is_within_host else None
            self.socket.send(_ACK + _TAKEN.pack(self.num_taken, _NO_CORE if core is None else core))
            with contextlib.suppress(OSError):  # the failure shows when the socket is read
                self.socket.flush()
            self.num_taken = self.num_taken_bytes = 0

    def send_record(self, record: bytes) -> None:
        self.socket.send(_RECORD + record)

    def read_frame(self, frame: bytes) -> bytes | None:
        """The record in a frame, if it is one. Acknowledgements are handled here."""
        if frame.startswith(_ACK) and len(frame) == len(_ACK) + _TAKEN.size:
            num_taken, core = _TAKEN.unpack_from(frame, len(_ACK))
            leave_core(core)
            for _ in range(min(num_taken, len(self.unacknowledged))):
                self.num_unacknowledged_bytes -= self.unacknowledged.popleft()
            self._post()
            return None
        return frame.removeprefix(_RECORD)

    def complete(self) -> bool:
        """Handles the operations that are done. Returns whether there were any."""
        finished: list[_Operation] = []
        going: list[_Operation] = []
        for operation in self.operations:
            (finished if operation.request.is_done() else going).append(operation)
        if not finished:
            return False
        self.operations = going  # before the callbacks, which may post more
        for operation in finished:
            operation.done(operation.request.error)
        return True

    def give_up(self) -> list[Done]:
        """The link is down: returns the callbacks of all operations that are left."""
        left = [operation.done for operation in self.operations] + [done for _, _, done in self.held]
        self.operations.clear()
        self.held.clear()
        return left

    def cancel(self) -> None:
        """The link is down: asks UCX to end what it may still be waiting for."""
        for operation in self.operations:
            operation.request.cancel(self.worker)

    def _has_room(self, num_bytes: int) -> bool:
        # Messages that were taken, but are not acknowledged yet, must not hold back the largest message.
        return self.num_unacknowledged_bytes <= max(WINDOW_BYTES - num_bytes, ACKNOWLEDGE_BYTES)

    def _post(self) -> None:
        while self.held and self._has_room(_cost(self.held[0][1])):
            tag, content, done = self.held.popleft()
            self.unacknowledged.append(_cost(content))
            self.num_unacknowledged_bytes += _cost(content)
            self.operations.append(_Operation(self.ucp.send(self.endpoint, tag, content), done))


def _cost(content: Content) -> int:
    return _in_segments(len(content))


def _in_segments(num_bytes: int) -> int:
    return -(-num_bytes // SEGMENT_PAYLOAD_BYTES) * SEGMENT_BYTES
