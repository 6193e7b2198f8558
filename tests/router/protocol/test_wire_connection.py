"""The frame protocol over real sockets: order, bad bytes, slow readers."""

import asyncio
import gc
import socket
import weakref

import pytest
import uvloop

from slipstream.router.protocol.messages import Cancel, Ping, Welcome
from slipstream.router.protocol.wire import FrameProtocol, WireError, encode_frame

LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])


class End:
    """One end of a connection and what it saw."""

    def __init__(self, **limits):
        self.received = []
        self.lost = asyncio.get_running_loop().create_future()
        self.opened = asyncio.Event()
        self.arrived = asyncio.Event()
        self.protocol = FrameProtocol(self.on_message, self.lost.set_result, self.opened.set, **limits)

    def on_message(self, message):
        self.received.append(message)
        self.arrived.set()

    async def wait_for_messages(self, count):
        while len(self.received) < count:
            self.arrived.clear()
            await self.arrived.wait()


async def connected(server_limits=None):
    """A server's end, a client's end."""
    loop = asyncio.get_running_loop()
    server_end = End(**(server_limits or {}))
    server = await loop.create_server(lambda: server_end.protocol, "127.0.0.1", 0)
    client_end = End()
    await loop.create_connection(lambda: client_end.protocol, *server.sockets[0].getsockname())
    await server_end.opened.wait()
    server.close()
    return server_end, client_end


def run(loop_factory, main):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), 20))


@LOOPS
def test_messages_arrive_in_order_in_both_directions_and_close_flushes(loop_factory):
    async def main():
        server, client = await connected()
        sent = [Cancel(f"r{i}" * (1 + i % 300), i) for i in range(2000)]
        for message in sent:
            client.protocol.send(message)
        client.protocol.send(Ping(1))
        client.protocol.close()
        client.protocol.send(Ping(2))  # too late, and no error
        await server.lost
        assert server.received == [*sent, Ping(1)]
        assert await client.lost is None

    run(loop_factory, main)


@LOOPS
def test_small_frames_are_not_held_back(loop_factory):
    async def main():
        server, client = await connected()
        for end in (server, client):
            connection = end.protocol._transport.get_extra_info("socket")
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            end.protocol.abort()
        await asyncio.gather(server.lost, client.lost)

    run(loop_factory, main)


@LOOPS
def test_bad_bytes_close_the_connection_with_the_reason_and_deliver_nothing_more(loop_factory):
    async def main():
        server, client = await connected()
        good = encode_frame(Ping(1))
        client.protocol._transport.write(good + b"\x01\x00\x00\x00\xc1" + good)
        reason = await server.lost
        assert isinstance(reason, WireError)
        assert server.received == [Ping(1)]
        assert not server.protocol.is_open
        await client.lost

    run(loop_factory, main)


@LOOPS
def test_a_frame_over_the_limit_closes_the_connection_before_it_is_buffered(loop_factory):
    async def main():
        server, client = await connected({"max_frame_bytes": 1000})
        client.protocol.send(Welcome("x" * 2000))
        assert "exceeds 1000" in str(await server.lost)
        await client.lost

    run(loop_factory, main)


@LOOPS
def test_a_peer_that_does_not_read_is_dropped_when_too_much_waits(loop_factory):
    async def main():
        server, client = await connected({"max_outgoing_bytes": 1 << 20})
        client.protocol._transport.pause_reading()
        message = Welcome("x" * 100_000)
        sent = 0
        while server.protocol.is_open:
            server.protocol.send(message)
            sent += 1
            assert sent < 1000
        assert isinstance(await server.lost, BufferError)
        client.protocol.abort()
        await client.lost

    run(loop_factory, main)


@LOOPS
def test_after_close_no_message_is_delivered(loop_factory):
    async def main():
        server, client = await connected()
        server.protocol._on_message = lambda message: (server.on_message(message), server.protocol.close())
        client.protocol._transport.write(encode_frame(Ping(1)) + encode_frame(Ping(2)))
        await server.lost
        assert server.received == [Ping(1)]
        await client.lost

    run(loop_factory, main)


def test_an_end_that_closes_before_it_is_connected_never_opens():
    async def main():
        loop = asyncio.get_running_loop()
        server_end, client_end = End(), End()
        server = await loop.create_server(lambda: server_end.protocol, "127.0.0.1", 0)
        client_end.protocol.close()
        await loop.create_connection(lambda: client_end.protocol, *server.sockets[0].getsockname())
        await client_end.lost
        assert not client_end.opened.is_set()
        await server_end.lost
        server.close()

    run(asyncio.new_event_loop, main)


class Owner:
    """One end of a connection without other references."""

    def __init__(self):
        self.heard, self.lost = asyncio.Event(), asyncio.Event()
        self.protocol = FrameProtocol(self.on_message, self.on_lost, max_frame_bytes=100_000)

    def on_message(self, message):
        self.heard.set()
        if isinstance(message, Welcome):
            self.protocol.close()

    def on_lost(self, reason):
        self.heard.set()
        self.lost.set()


@LOOPS
@pytest.mark.parametrize(
    "data",
    [
        pytest.param((70_000).to_bytes(4, "little") + b"x" * 60_000, id="half a frame"),
        pytest.param((60_000).to_bytes(4, "little") + b"\xc1" * 60_000, id="garbage"),
        pytest.param(encode_frame(Cancel("x" * 60_000, 1)), id="a frame"),
        pytest.param(encode_frame(Welcome("x" * 60_000)), id="closed by the other end"),
    ],
)
def test_nothing_of_a_connection_outlives_it(loop_factory, data):
    """Not even until the garbage collector comes by, which may be thousands of connections later."""
    owners, here = [], []

    def accept():
        owners.append(Owner())
        here.append(weakref.ref(owners[-1].protocol))
        return owners[-1].protocol

    async def main():
        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        for _ in range(3):
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(data)
            while not (owners and (owners[0].heard.is_set() or owners[0].protocol.reader._rest)):
                await asyncio.sleep(0.001)
            writer.close()
            lost = owners.pop().lost
            await lost.wait()
            await asyncio.sleep(0)
        server.close()

    gc.disable()
    try:
        run(loop_factory, main)
        assert [protocol() for protocol in here] == [None] * 3
    finally:
        gc.enable()
