"""A wire for KV pages in virtual time: late, stalled, broken, damaged, and never twice out of order on one link.

It keeps the rules of `kv_transfer.transport`. A message is *eager* (copied when it is sent; the sender is done long
before the receiver has it) or waits in the sender's buffer until it is received, as over UCX.

Between two hosts the cable may be cut: what is on its way stays on its way, each end that has heard nothing for
about `SILENCE_S` takes the other for gone, and nobody can say goodbye. When it is healed, what has waited arrives on
the links that both ends still believe in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Buffer, Done, MessageArrival, TransportEvents
from tests.support.faults.clockwork import Clockwork

SILENCE_S = 1.0


@dataclass(slots=True)
class WireFaults:
    """Chances a message."""

    corrupt: float = 0.0
    stall: float = 0.0  # it never comes to an end by itself
    late: float = 0.0


@dataclass(slots=True, eq=False)
class LinkEnd:
    owner: VirtualTransport
    other: LinkEnd | None = None
    is_alive: bool = True
    free_s: float = 0.0  # when what was sent last arrives at the other end
    sending: list[_Message] = field(default_factory=list)
    held: deque[Callable[[], None]] = field(default_factory=deque)  # what would have arrived at `other` by now

    @property
    def is_cut(self) -> bool:
        return self.other is not None and self.owner.is_cut_from(self.other.owner)


@dataclass(slots=True, eq=False)
class _Message:
    link: LinkEnd  # the sender's
    tag: int
    buffer: Buffer
    done: Done | None  # None: the sender has been told
    is_eager: bool
    is_stalled: bool
    is_over: bool = False  # its link is gone
    receiver: Callable[[str | None], None] | None = None  # ends a receive that is under way


class PageWire:
    def __init__(self, clock: Clockwork, seen: Counter[str]) -> None:
        self.clock = clock
        self.seen = seen
        self.faults = WireFaults()
        self._transports: dict[int, VirtualTransport] = {}
        self._next_port = 1
        self._cut: set[frozenset[str]] = set()

    def open(self, wake: Callable[[], None], host: str) -> VirtualTransport:
        transport = VirtualTransport(self, TransferAddress(host, self._next_port), wake)
        self._transports[self._next_port] = transport
        self._next_port += 1
        return transport

    def at(self, address: TransferAddress) -> VirtualTransport | None:
        return self._transports.get(address.port)

    def remove(self, transport: VirtualTransport) -> None:
        self._transports.pop(transport.address.port, None)

    def links(self) -> list[LinkEnd]:
        return [link for transport in self._transports.values() for link in transport.links]

    def break_link(self, link: LinkEnd) -> None:
        """In the middle; each end hears of it when it does."""
        for end in (link, link.other):
            if end is not None:
                self.clock.after(self.delay_s() * 5, lambda end=end: end.owner.lose(end, "the link broke"))

    def is_cut(self, one: TransferAddress, other: TransferAddress) -> bool:
        return bool(self._cut) and frozenset((one.host, other.host)) in self._cut

    def cut_cable(self, one: str, other: str) -> None:
        """Between two hosts."""
        self._cut.add(frozenset((one, other)))
        for link in self.links():
            if link.is_cut:
                silent_s = SILENCE_S * (0.5 + self.clock.rng.random())
                self.clock.after(silent_s, lambda link=link: link.owner.miss(link))

    def heal_cable(self, one: str, other: str) -> None:
        """One that is whole stays so."""
        self._cut.discard(frozenset((one, other)))
        for link in self.links():
            if link.other is not None and not link.other.is_alive and not link.is_cut:
                link.owner.lose(link, "the peer knows nothing of it")
            while link.held and not link.is_cut:
                link.held.popleft()()

    def delay_s(self) -> float:
        rng = self.clock.rng
        return rng.choice((0.0001, 0.001, 0.003)) * rng.random()


class VirtualTransport:
    """A `Transport`. `wake` is told whenever `progress` has something to do."""

    def __init__(self, wire: PageWire, address: TransferAddress, wake: Callable[[], None]) -> None:
        self._wire = wire
        self._clock = wire.clock
        self._address = address
        self._wake = wake
        self._events: TransportEvents | None = None
        self._due: deque[Callable[[TransportEvents], None]] = deque()
        self._in_flight = 0
        self._is_dead = False
        self.links: list[LinkEnd] = []

    @property
    def address(self) -> TransferAddress:
        return self._address

    @property
    def num_in_flight(self) -> int:
        return self._in_flight

    def start(self, events: TransportEvents) -> None:
        self._events = events

    def progress(self) -> bool:
        assert self._events is not None
        busy = bool(self._due)
        while self._due:
            self._due.popleft()(self._events)
        return busy

    def wait(self, timeout_s: float) -> None:
        raise AssertionError("nobody sleeps in virtual time")

    def wake(self) -> None:
        self._wake()

    def close(self) -> None:
        self.die()

    def die(self) -> None:
        """The process is gone, and everything in it."""
        self._is_dead = True
        self._wire.remove(self)
        for link in self.links.copy():
            self._end(link, "the process is gone")
            self._tell_other(link, "the peer has gone")
        self._due.clear()

    def is_cut_from(self, other: VirtualTransport) -> bool:
        return self._wire.is_cut(self._address, other._address)

    def miss(self, link: LinkEnd) -> None:
        """Nothing has been heard of the other end for too long, if the cable is still cut."""
        if link.is_cut:
            self.lose(link, "the host is silent")

    def connect(self, address: TransferAddress) -> LinkEnd:
        link = LinkEnd(self)
        self.links.append(link)
        if self._wire.is_cut(self._address, address):
            return link  # nobody answers, and nobody says so
        peer = self._wire.at(address)
        if peer is None:
            self._clock.after(self._wire.delay_s(), lambda: self.lose(link, "nobody listens there"))
            return link
        other = link.other = LinkEnd(peer, link)
        peer.links.append(other)
        self._deliver(link, lambda: peer._post(lambda events: events.on_link(other)))
        return link

    def disconnect(self, link: LinkEnd) -> None:
        if link.is_alive:
            self._end(link, "the link was cut here")
            self._tell_other(link, "the peer has cut the link")

    def lose(self, link: LinkEnd, reason: str) -> None:
        if link.is_alive and not self._is_dead:
            self._end(link, reason)
            self._post(lambda events: events.on_lost(link, reason))
            self._tell_other(link, reason)

    def _tell_other(self, link: LinkEnd, reason: str) -> None:
        other = link.other
        if other is not None and other.is_alive and not link.is_cut:
            self._clock.after(self._wire.delay_s() * 3, lambda: other.owner.lose(other, reason))

    def _end(self, link: LinkEnd, reason: str) -> None:
        link.is_alive = False
        self.links.remove(link)
        received = link.other.sending if link.other is not None else []
        for message in [*link.sending, *received]:
            message.is_over = True
            self._sender_done(message, reason)
            if message.receiver is not None:
                message.receiver(reason)
        link.sending.clear()
        link.held.clear()
        received.clear()

    def send_record(self, link: LinkEnd, record: bytes) -> None:
        other = link.other
        if link.is_alive and other is not None:
            self._deliver(link, lambda: other.owner._post(lambda events: events.on_record(other, record)))

    def send(self, link: LinkEnd, tag: int, buffer: Buffer, done: Done) -> None:
        self._in_flight += 1
        rng, faults = self._clock.rng, self._wire.faults
        if not link.is_alive or link.other is None:
            self._post_done(done, "the link is down")
            return
        is_eager = rng.random() < 0.5
        message = _Message(
            link, tag, buffer.copy() if is_eager else buffer, done, is_eager, rng.random() < faults.stall
        )
        link.sending.append(message)
        self._wire.seen["stalled message"] += message.is_stalled
        if is_eager:
            self._clock.after(self._wire.delay_s(), lambda: self._sender_done(message, None))
        if rng.random() < faults.late:
            link.free_s = max(link.free_s, self._clock.now + rng.random())
        other = link.other

        def arrive() -> None:
            arrival = MessageArrival(other, tag, len(buffer), message)
            other.owner._post(lambda events: events.on_arrival(arrival))

        self._deliver(link, arrive)

    def receive(self, arrival: MessageArrival, buffer: Buffer, done: Done) -> None:
        message: _Message = arrival.handle
        self._in_flight += 1
        is_ended = False

        def end(error: str | None) -> None:
            nonlocal is_ended
            if is_ended:
                return
            is_ended = True
            message.receiver = None
            if error is None:
                buffer[: len(message.buffer)] = message.buffer
                if self._clock.rng.random() < self._wire.faults.corrupt:
                    self._wire.seen["damaged message"] += 1
                    buffer[self._clock.rng.randrange(len(message.buffer))] ^= 1 << self._clock.rng.randrange(8)
                self._sender_done(message, None)
                if message in message.link.sending:
                    message.link.sending.remove(message)
            self._post_done(done, error)

        if message.is_over:
            end("the link broke")
            return
        message.receiver = end
        if not message.is_stalled:
            self._clock.after(self._wire.delay_s(), lambda: self._unless_cut(message.link, lambda: end(None)))

    def _unless_cut(self, link: LinkEnd, do: Callable[[], None]) -> None:
        if link.is_cut:
            link.held.append(do)
        else:
            do()

    def _sender_done(self, message: _Message, error: str | None) -> None:
        done, message.done = message.done, None
        if done is not None:
            message.link.owner._post_done(done, error)

    def _deliver(self, link: LinkEnd, do: Callable[[], None]) -> None:
        """In order behind all that was sent on this link before; nothing arrives on a link that is gone."""
        link.free_s = max(link.free_s, self._clock.now) + self._wire.delay_s()

        def arrive() -> None:
            if link.other is not None and link.other.is_alive:
                do()

        self._clock.at(link.free_s, lambda: self._unless_cut(link, arrive))

    def _post_done(self, done: Done, error: str | None) -> None:
        def call(events: TransportEvents) -> None:
            self._in_flight -= 1
            done(error)

        self._post(call)

    def _post(self, call: Callable[[TransportEvents], None]) -> None:
        if not self._is_dead:
            self._due.append(call)
            self._wake()
