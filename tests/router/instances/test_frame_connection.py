"""How the frames of a connection are given to its socket."""

from __future__ import annotations

import asyncio

from slipstream.router.instances.frames.frame_connection import FrameConnection, NoReceiver
from slipstream.router.tensor_memory.region_pool import INLINE_BYTES


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))


def test_a_frame_with_an_inline_tensor_is_written_in_one_piece() -> None:
    """The other end would wake up for its head alone."""
    connection, transport = FrameConnection(lambda _: NoReceiver(), 1 << 20), Written()
    connection.connection_made(transport)
    connection.send({"type": "execute"}, [bytes(INLINE_BYTES)], INLINE_BYTES)
    assert len(transport.pieces) == 1
