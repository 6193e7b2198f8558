"""Pages over a transport that packs and unpacks them itself: none of them are staged.

    pages --pack--> [ segments of the wire ] ==> [ segments ] --unpack--> pages

What arrives goes into its pages piece by piece, before its checksum is known; a transfer with a wrong one has failed,
and nobody looks at its pages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from slipstream.kv_transfer.over_transport import OverTransport
from slipstream.kv_transfer.page_stream import PageStream, StreamLibrary
from slipstream.kv_transfer.page_transport import FireDrill, Landed, Pages
from slipstream.kv_transfer.pool import HostPagePool
from slipstream.kv_transfer.transport import Arrival, Buffer, Done, Link, Transport

MAX_IN_FLIGHT = 8  # messages of a link, and from a peer
MAX_BATCH = 4  # messages made at a time: what Python does for them is done before packing sweeps it out of the caches


class StreamTransport(Transport, Protocol):
    """A `Transport` whose messages may be streams. A stream is received whole or not at all, like a buffer."""

    def send(self, link: Link, tag: int, buffer: Buffer | PageStream, done: Done) -> None: ...

    def receive(self, arrival: Arrival, buffer: Buffer | PageStream, done: Done) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A message that the wire does not have yet."""

    link: Link
    tag: int
    stream: PageStream
    done: Done


class StreamedTransport(OverTransport[StreamTransport]):
    """A `PageTransport`. No message may have less than MIN_BYTES of pages."""

    def __init__(
        self, transport: StreamTransport, pool: HostPagePool, library: StreamLibrary, drill: FireDrill
    ) -> None:
        super().__init__(transport)
        self._pool = pool
        self._library = library
        self._drill = drill
        self._made: deque[_Made] = deque()

    @property
    def num_in_flight(self) -> int:
        return len(self._made) + super().num_in_flight

    def disconnect(self, link: Link) -> None:
        super().disconnect(link)
        self._let_go([made for made in self._made if made.link is link])

    def close(self) -> None:
        super().close()
        self._let_go(list(self._made))

    def can_send(self, link: Link, num_in_flight: int) -> bool:
        # The first one alone, so that the receiver can begin.
        num_sent = num_in_flight - len(self._made)
        return num_in_flight < MAX_IN_FLIGHT and len(self._made) < min(MAX_BATCH, 1 + num_sent)

    def can_receive(self, arrival: Arrival, num_in_flight: int) -> bool:
        return num_in_flight < MAX_IN_FLIGHT

    def send(self, link: Link, tag: int, pages: Pages, done: Done) -> None:
        stream = PageStream(self._library, self._pool, pages, spoil=self._drill.strikes())
        self._made.append(_Made(link, tag, stream, done))

    def receive(self, arrival: Arrival, pages: Pages, landed: Landed) -> None:
        stream = PageStream(self._library, self._pool, pages)
        self._transport.receive(self._raw(arrival), stream, partial(_on_received, stream, landed))

    def progress(self) -> bool:
        busy = super().progress()
        while self._made:  # the wire is looked after between two messages
            made = self._made.popleft()
            self._transport.send(made.link, made.tag, made.stream, partial(_on_sent, made.stream, made.done))
            busy = super().progress() or busy
        return busy

    def wait(self, timeout_s: float) -> None:
        if not self._made:
            super().wait(timeout_s)

    def _let_go(self, lost: list[_Made]) -> None:
        self._made = deque(made for made in self._made if made not in lost)
        for made in lost:
            _on_sent(made.stream, made.done, "the link is down")


def _on_sent(stream: PageStream, done: Done, error: str | None) -> None:
    stream.close()
    done(error)


def _on_received(stream: PageStream, landed: Landed, error: str | None) -> None:
    is_whole = error is None and stream.is_whole()
    stream.close()
    landed(error, is_whole)
