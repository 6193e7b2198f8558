"""A transport inside one process, for unit tests: rendezvous semantics, with hooks to delay, drop and corrupt.

A message stays in the sender's buffer until the receiver takes it, as large messages do over UCX.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Buffer, Done, Link, MessageArrival, TransportEvents


@dataclass(slots=True, eq=False)
class LoopbackLink:
    owner: LoopbackTransport
    other: LoopbackLink | None = None
    is_alive: bool = True
    unfinished: list[_LoopbackMessage] = field(default_factory=list)  # sent on this link


@dataclass(slots=True, eq=False)
class _LoopbackMessage:
    link: LoopbackLink  # the sender's end
    tag: int
    buffer: Buffer
    done: Done
    is_over: bool = False


@dataclass(slots=True)
class LoopbackFaults:
    """Faults to inject. A message is kept from the receiver while `hold` is true for it. `drop` loses messages without
    telling the sender. `corrupt` may change the bytes that the receiver gets."""

    hold: Callable[[int], bool] = lambda tag: False
    drop: Callable[[int], bool] = lambda tag: False
    corrupt: Callable[[int, Buffer], None] = lambda tag, buffer: None


class LoopbackNetwork:
    """The transports that can reach each other. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.faults = LoopbackFaults()
        self._transports: dict[int, LoopbackTransport] = {}
        self._next_port = 1

    def open(self) -> LoopbackTransport:
        with self.lock:
            transport = LoopbackTransport(self, TransferAddress("loopback", self._next_port))
            self._transports[self._next_port] = transport
            self._next_port += 1
            return transport

    def find(self, port: int) -> LoopbackTransport | None:
        return self._transports.get(port)

    def remove(self, transport: LoopbackTransport) -> None:
        self._transports.pop(transport.address.port, None)


class LoopbackTransport:
    def __init__(self, network: LoopbackNetwork, address: TransferAddress) -> None:
        self._network = network
        self._address = address
        self._events: TransportEvents | None = None
        self._links: list[LoopbackLink] = []
        self._inbox: deque[Callable[[TransportEvents], None]] = deque()
        self._messages: deque[_LoopbackMessage] = deque()
        self._in_flight = 0
        self._wakeup = threading.Event()

    @property
    def address(self) -> TransferAddress:
        return self._address

    @property
    def num_in_flight(self) -> int:
        return self._in_flight

    def start(self, events: TransportEvents) -> None:
        self._events = events

    def connect(self, address: TransferAddress) -> Link:
        with self._network.lock:
            link = LoopbackLink(self)
            self._links.append(link)
            peer = self._network.find(address.port)
            if peer is None:
                self._lose(link, "no listener at this address")
            else:
                peer.accept(link)
            return link

    def accept(self, link: LoopbackLink) -> None:
        mine = link.other = LoopbackLink(self, link)
        self._links.append(mine)
        self.post(lambda events: events.on_link(mine))

    def disconnect(self, link: Link) -> None:
        assert isinstance(link, LoopbackLink)
        with self._network.lock:
            if not link.is_alive:
                return
            self._end(link, "the link was cut here")
            other = link.other
            if other is not None and other.is_alive:
                other.owner._lose(other, "the peer has gone")

    def send_record(self, link: Link, record: bytes) -> None:
        assert isinstance(link, LoopbackLink)
        with self._network.lock:
            other = link.other
            if link.is_alive and other is not None:
                target: LoopbackLink = other
                target.owner.post(lambda events: events.on_record(target, record))

    def send(self, link: Link, tag: int, buffer: Buffer, done: Done) -> None:
        assert isinstance(link, LoopbackLink)
        with self._network.lock:
            self._in_flight += 1
            message = _LoopbackMessage(link, tag, buffer, done)
            if not link.is_alive or link.other is None:
                self._settle(message, "the link is down")
            elif self._network.faults.drop(tag):
                self._settle(message, None)
            else:
                link.unfinished.append(message)
                link.other.owner._messages.append(message)
                link.other.owner.wake()

    def receive(self, arrival: MessageArrival, buffer: Buffer, done: Done) -> None:
        message = arrival.handle
        assert isinstance(message, _LoopbackMessage)
        with self._network.lock:
            self._in_flight += 1
            error: str | None = "the link broke" if message.is_over else None
            if error is None:
                buffer[: len(message.buffer)] = message.buffer
                self._network.faults.corrupt(message.tag, buffer)
                message.link.unfinished.remove(message)
                message.link.owner._settle(message, None)
            self.post(lambda events: self._received(done, error))

    def progress(self) -> bool:
        assert self._events is not None
        busy = False
        while self._inbox:
            self._inbox.popleft()(self._events)
            busy = True
        with self._network.lock:
            held = [m for m in self._messages if self._network.faults.hold(m.tag) and not m.is_over]
            free = [m for m in self._messages if m not in held]
            self._messages = deque(held)
        for message in free:
            self._events.on_arrival(MessageArrival(message.link.other, message.tag, len(message.buffer), message))
        return busy or bool(free)

    def wait(self, timeout_s: float) -> None:
        self._wakeup.wait(min(timeout_s, 1.0))
        self._wakeup.clear()

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        with self._network.lock:
            self._network.remove(self)
            for link in self._links.copy():
                self.disconnect(link)
        while self._in_flight and self.progress():
            pass

    def post(self, call: Callable[[TransportEvents], None]) -> None:
        self._inbox.append(call)
        self.wake()

    def _received(self, done: Done, error: str | None) -> None:
        self._in_flight -= 1
        done(error)

    def _settle(self, message: _LoopbackMessage, error: str | None) -> None:
        message.is_over = True
        self.post(lambda events: self._received(message.done, error))

    def _end(self, link: LoopbackLink, reason: str) -> None:
        link.is_alive = False
        self._links.remove(link)
        for message in link.unfinished:
            self._settle(message, reason)
        link.unfinished.clear()

    def _lose(self, link: LoopbackLink, reason: str) -> None:
        self._end(link, reason)
        self.post(lambda events: events.on_lost(link, reason))
