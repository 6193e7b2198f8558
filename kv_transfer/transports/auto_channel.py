"""Chooses the best channel for each peer: shared memory on the same host, otherwise one that uses the network.

A link belongs to the channel that made it. A peer that refuses shared memory, for good or for lack of file
descriptors, is called over the other channel for a while, and for longer each time that it refuses again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import ControlChannel, Link, MessageArrival, TransportError, TransportEvents
from slipstream.kv_transfer.shared_memory.shm_link import ShmLink
from slipstream.kv_transfer.shared_memory.shm_transport import ShmTransport

# A refusal costs the transfer that was to use the link, so a peer that keeps refusing is asked ever more rarely.
FIRST_PATIENCE_S, MAX_PATIENCE_S = 60.0, 3600.0
MAX_REFUSALS = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """When a peer that has refused may be asked again."""

    until_s: float
    patience_s: float


class AutoChannel:
    """While `remote` sleeps, it must also watch `shared` (`UcxTransport.wake_for`). Both have the same address."""

    def __init__(
        self, shared: ShmTransport, remote: ControlChannel, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._shared = shared
        self._remote = remote
        self._events: TransportEvents | None = None
        self._called: dict[ShmLink, TransferAddress] = {}  # links whose peer has not answered yet
        self._refusals: dict[TransferAddress, _Refusal] = {}

    @property
    def address(self) -> TransferAddress:
        return self._remote.address

    def start(self, events: TransportEvents) -> None:
        self._events = events
        self._shared.start(self)
        self._remote.start(events)

    def connect(self, address: TransferAddress) -> Link:
        refusal = self._refusals.get(address)
        if refusal is None or self._clock() >= refusal.until_s:
            try:
                link = self._shared.connect(address)
            except TransportError as error:
                log.debug("%s", error)
            else:
                self._called[link] = address
                return link
        return self._remote.connect(address)

    def disconnect(self, link: Link) -> None:
        if isinstance(link, ShmLink):
            self._called.pop(link, None)
        self._of(link).disconnect(link)

    def send_record(self, link: Link, record: bytes) -> None:
        self._of(link).send_record(link, record)

    def progress(self) -> bool:
        busy = self._shared.progress()
        return self._remote.progress() or busy

    def wait(self, timeout_s: float) -> None:
        self._remote.wait(0.0 if self._shared.spins() else timeout_s)

    def wake(self) -> None:
        self._remote.wake()

    def close(self) -> None:
        self._shared.close()
        self._remote.close()

    def on_link(self, link: Link) -> None:
        assert self._events is not None
        self._events.on_link(link)

    def on_record(self, link: Link, record: bytes) -> None:
        assert self._events is not None
        if isinstance(link, ShmLink):
            address = self._called.pop(link, None)
            if address is not None:
                self._refusals.pop(address, None)
        self._events.on_record(link, record)

    def on_arrival(self, arrival: MessageArrival) -> None:
        assert self._events is not None
        self._events.on_arrival(arrival)

    def on_lost(self, link: Link, reason: str) -> None:
        assert self._events is not None
        if isinstance(link, ShmLink) and (address := self._called.pop(link, None)) is not None:
            log.warning("%s:%d takes no pages from shared memory: %s", address.host, address.port, reason)
            before = self._refusals.get(address)
            if len(self._refusals) >= MAX_REFUSALS:  # most are addresses of processes that no longer exist
                self._refusals.clear()
            patience_s = FIRST_PATIENCE_S if before is None else min(2 * before.patience_s, MAX_PATIENCE_S)
            self._refusals[address] = _Refusal(self._clock() + patience_s, patience_s)
        self._events.on_lost(link, reason)

    def _of(self, link: Link) -> ControlChannel:
        return self._shared if isinstance(link, ShmLink) else self._remote
