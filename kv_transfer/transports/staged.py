"""Moves pages over any `Transport`: gathers them into a buffer at one end, and scatters them at the other.

    pages --gather--> [ payload | checksum, 8 bytes ] ==transport==> [ payload | checksum ] --scatter--> pages

The checksum is computed while gathering, and compared with the one computed while scattering. So a message may turn out
to be broken only after it has overwritten pages; but then its transfer has failed, and those pages are not read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

import xxhash

from slipstream.kv_transfer.api.page_transport import CHECKSUM_BYTES, FaultInjection, Landed, MessagePages
from slipstream.kv_transfer.api.transport import Buffer, Done, Link, MessageArrival, Transport
from slipstream.kv_transfer.memory.host_pages import HostPagePool, TransferPool
from slipstream.kv_transfer.transports.staging import Staging, host_memory, receive_into_scrap

MAX_IN_FLIGHT = 8  # enough to hide the copying at both ends; more only spills out of the cache


@dataclass(frozen=True, slots=True)
class _StagedReceive:
    pages: MessagePages
    slot: int
    buffer: Buffer
    landed: Landed


class StagedMover:
    """A `PageMover`. `message_bytes` is the size of the largest message, `staging_bytes` the memory for both directions
    together. Each direction has its own half; otherwise two ranks that send to each other could both fill all buffers
    with messages that the other has no buffer for.
    Raises StagingError if a half does not hold two messages.
    """

    def __init__(
        self,
        transport: Transport,
        pool: TransferPool,
        message_bytes: int,
        staging_bytes: int,
        fault_injection: FaultInjection,
    ) -> None:
        self._transport = transport
        self._pool = pool
        self._host_pool = pool if isinstance(pool, HostPagePool) else None
        self._fault_injection = fault_injection
        self._outgoing = Staging(message_bytes + CHECKSUM_BYTES, staging_bytes // 2, host_memory)
        self._incoming = Staging(message_bytes + CHECKSUM_BYTES, staging_bytes // 2, host_memory)
        self._staged_receives: deque[_StagedReceive] = deque()
        self._has_gathered = False  # since `work`, as the wire must be served between two copies
        # At most half of the slots, so that a peer that has stalled cannot stop the others.
        self._max_in_flight = max(1, min(MAX_IN_FLIGHT, self._outgoing.num_slots // 2))

    @property
    def joins_layers(self) -> bool:
        return False

    @property
    def num_in_flight(self) -> int:
        return self._transport.num_in_flight + len(self._staged_receives)

    def payload_bytes(self, arrival: MessageArrival) -> int:
        return arrival.num_bytes - CHECKSUM_BYTES

    def can_send(self, num_in_flight: int) -> bool:
        room = num_in_flight < self._max_in_flight and bool(self._outgoing.num_free)
        return room and not self._has_gathered

    def can_receive(self, num_in_flight: int) -> bool:
        return num_in_flight < self._max_in_flight and bool(self._incoming.num_free)

    def send(self, link: Link, tag: int, pages: MessagePages, done: Done) -> None:
        num_bytes = len(pages.page_ids) * len(pages.heads) * self._pool.geometry.head_bytes
        slot, buffer = self._outgoing.take(num_bytes + CHECKSUM_BYTES)
        self._has_gathered = True
        checksum = self._gather(pages, buffer[:num_bytes])
        buffer[num_bytes:] = memoryview(checksum.to_bytes(CHECKSUM_BYTES, "little"))
        if self._fault_injection.should_corrupt():
            buffer[num_bytes // 2] ^= 0x10
        self._transport.send(link, tag, buffer, partial(self._on_sent, slot, done))

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        slot, buffer = self._incoming.take(arrival.num_bytes)
        landing = _StagedReceive(pages, slot, buffer, landed)
        self._transport.receive(arrival, landing.buffer, partial(self._on_received, landing))

    def discard(self, arrival: MessageArrival) -> None:
        receive_into_scrap(self._transport, arrival)

    def work(self) -> bool:
        self._has_gathered = False
        if not self._staged_receives:
            return False
        self._land(self._staged_receives.popleft())  # one at a time, so that the wire is served between two copies
        return True

    def pause(self) -> bool:
        return False

    def give_up(self) -> None:
        while self._staged_receives:
            landing = self._staged_receives.popleft()
            self._incoming.give_back(landing.slot)
            landing.landed("the transport is closed", False)

    def _on_sent(self, slot: int, done: Done, error: str | None) -> None:
        self._outgoing.give_back(slot)
        done(error)

    def _on_received(self, landing: _StagedReceive, error: str | None) -> None:
        if error is None:
            self._staged_receives.append(landing)
        else:
            self._incoming.give_back(landing.slot)
            landing.landed(error, False)

    def _land(self, landing: _StagedReceive) -> None:
        payload = landing.buffer[:-CHECKSUM_BYTES]
        expected = int.from_bytes(landing.buffer[-CHECKSUM_BYTES:].tobytes(), "little")
        is_whole = self._scatter(landing.pages, payload) == expected
        self._incoming.give_back(landing.slot)
        landing.landed(None, is_whole)

    def _gather(self, pages: MessagePages, out: Buffer) -> int:
        if self._host_pool is not None:
            return self._host_pool.gather_summed(pages.layer, pages.page_ids, pages.heads, out, pages.seed)
        self._pool.gather(pages.layer, pages.page_ids, pages.heads, out)
        return xxhash.xxh3_64_intdigest(out.data, seed=pages.seed)

    def _scatter(self, pages: MessagePages, src: Buffer) -> int:
        if self._host_pool is not None:
            return self._host_pool.scatter_summed(pages.layer, pages.page_ids, pages.heads, src, pages.seed)
        self._pool.scatter(pages.layer, pages.page_ids, pages.heads, src)
        return xxhash.xxh3_64_intdigest(src.data, seed=pages.seed)
