"""The sending half of a rank: links to destinations, and the pages on their way to them.

Runs on the transport thread alone. On each link, transfers are served in the order in which they came, because the
first one that is complete lets a sequence decode.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from slipstream.kv_transfer.api.page_layout import PageIds
from slipstream.kv_transfer.api.page_transport import MessagePages, PageMover, PageTransport
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import SendFailed, Sent, TransferEvent
from slipstream.kv_transfer.api.transport import Link, TransportError
from slipstream.kv_transfer.handoff.control_records import Abort, LinkHello, LinkWelcome, Record, Reject, encode_record
from slipstream.kv_transfer.handoff.message_plan import Message, StreamPlan
from slipstream.kv_transfer.handoff.state_machines import Action, CloseLinks, FinishTransfer, NotifyPeers, SendHandoff
from slipstream.kv_transfer.handoff.transfer_counters import Counters

MAX_JOINED_BYTES = 4 << 20  # the most bytes of layers that leave in one message


@dataclass(slots=True, eq=False)
class _Outbound:
    destination: PeerId
    address: TransferAddress
    link: Link
    mover: PageMover
    answer_by_s: float
    is_open: bool = False  # the destination has said Welcome
    joins_layers: bool = False
    num_in_flight: int = 0
    moved_s: float = float("-inf")  # when a message of any transfer last went out
    ready: deque[_SendStream] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _SendStream:
    sending: _OutgoingTransfer
    plan: StreamPlan
    outbound: _Outbound
    is_queued: bool = False  # is in outbound.ready


@dataclass(slots=True, eq=False)
class _OutgoingTransfer:
    key: TransferKey
    handoff: SendHandoff
    page_ids: PageIds
    streams: list[_SendStream] = field(default_factory=list)


class SendSide:
    """Carries out what each `SendHandoff` asks for, and ends each in one `Sent` or `SendFailed`."""

    def __init__(
        self,
        transport: PageTransport,
        config: TransferConfig,
        counters: Counters,
        emit: Callable[[TransferEvent], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = transport.channel
        self._mover_of = transport.mover_of
        self._lease_s = config.lease_s
        self._peer_timeout_s = config.peer_timeout_s
        self._counters = counters
        self._emit = emit
        self._clock = clock
        self._outgoing: dict[TransferKey, _OutgoingTransfer] = {}
        self._outbounds: dict[tuple[PeerId, TransferAddress], _Outbound] = {}
        self._by_link: dict[Link, _Outbound] = {}

    @property
    def num_transfers(self) -> int:
        return len(self._outgoing)

    @property
    def num_links(self) -> int:
        return sum(outbound.is_open for outbound in self._outbounds.values())

    def owns(self, link: Link) -> bool:
        """Whether this side has opened the link, and not ended it."""
        return link in self._by_link

    def next_deadline(self) -> float:
        """When `tick` has to be called next."""
        leases = min((s.handoff.deadline for s in self._outgoing.values()), default=float("inf"))
        return min((o.answer_by_s for o in self._outbounds.values() if not o.is_open), default=leases)

    def begin(
        self, me: PeerId, ticket: HandoffTicket, plans: list[StreamPlan], page_ids: PageIds, num_ready_pages: int
    ) -> None:
        """Begins a transfer of `page_ids` in the name of `me`, over one link to each destination rank. `plans` has one
        for each of these; the first `num_ready_pages` pages of the sequence can leave at once."""
        now = self._clock()
        key = ticket.key
        if key in self._outgoing:
            self._emit(SendFailed(key, f"transfer {key.transfer_id} is being sent already"))
            return
        handoff = SendHandoff(plans, now, self._lease_s)
        sending = self._outgoing[key] = _OutgoingTransfer(key, handoff, page_ids)
        try:
            for plan in plans:
                address = ticket.addresses[plan.stream.destination_rank]
                outbound = self._outbound(me, plan.stream.source_rank, ticket.destination, address)
                sending.streams.append(_SendStream(sending, plan, outbound))
        except TransportError as error:
            self._apply(sending, handoff.fail(str(error), now, is_unreachable=True))
            return
        self._apply(sending, handoff.begin(now))
        if num_ready_pages and handoff.all_layers_ready(num_ready_pages, now):
            self._queue(sending)

    def pages_ready(self, key: TransferKey, layer: int, num_pages: int) -> None:
        """The first `num_pages` pages of the sequence hold this layer, and can leave."""
        sending = self._outgoing.get(key)
        if sending is None or not sending.handoff.pages_ready(layer, num_pages, self._clock()):
            return
        self._queue(sending)

    def fail(self, key: TransferKey, reason: str) -> None:
        """Ends a transfer early, once nothing reads its pages. Unknown and ended ones are ignored."""
        sending = self._outgoing.get(key)
        if sending is not None:
            self._apply(sending, sending.handoff.fail(reason, self._clock()))

    def peer_lost(self, peer: PeerId, reason: str) -> None:
        """Fails everything that goes to the peer, and ends the links to it."""
        for outbound in list(self._outbounds.values()):
            if outbound.destination == peer:
                self._drop(outbound, reason)

    def end_all(self, reason: str) -> None:
        """Fails all transfers and ends all links."""
        for outbound in list(self._outbounds.values()):
            self._drop(outbound, reason)

    def abandon(self, reason: str) -> None:
        """The last call, for what still has not ended. This thread touches no page after it, even if operations still
        count as in flight."""
        for sending in list(self._outgoing.values()):
            self._apply(sending, [FinishTransfer(reason, 0, 0.0)])

    def on_record(self, link: Link, record: Record) -> None:
        outbound = self._by_link[link]
        match record:
            case LinkWelcome(joins_layers):
                outbound.is_open = True
                outbound.joins_layers = joins_layers and outbound.mover.joins_layers
            case Reject(reason):
                self._drop(outbound, f"{outbound.destination.name} refuses: {reason}")
            case Abort(transfer_id, reason):
                key = TransferKey(outbound.destination, transfer_id)
                self.fail(key, f"{outbound.destination.name} gave up: {reason}")
            case LinkHello():
                self._drop(outbound, f"{outbound.destination.name} answers with a greeting")

    def on_lost(self, link: Link, reason: str) -> None:
        outbound = self._by_link[link]
        name = outbound.destination.name
        self._drop(outbound, f"{name} at {_spell(outbound.address)} is lost: {reason}", is_unreachable=True)

    def pump(self) -> bool:
        """Posts what is ready, as far as there is room."""
        busy = False
        for outbound in self._outbounds.values():
            while outbound.is_open and outbound.ready and self._post_next(outbound):
                busy = True
        return busy

    def tick(self, now: float) -> None:
        """Ends what has made no progress for too long, and links that were not answered in time."""
        for sending in list(self._outgoing.values()):
            handoff = sending.handoff
            if handoff.deadline <= now:
                for stream in sending.streams:
                    if handoff.has_ready(stream.plan):
                        handoff.link_moved(stream.outbound.moved_s)
            self._apply(sending, handoff.tick(now))
        for outbound in list(self._outbounds.values()):
            if not outbound.is_open and now >= outbound.answer_by_s:
                self.on_lost(outbound.link, f"no answer within {self._peer_timeout_s:g} s")

    def _queue(self, sending: _OutgoingTransfer) -> None:
        for stream in sending.streams:
            if not stream.is_queued:
                stream.is_queued = True
                stream.outbound.ready.append(stream)

    def _post_next(self, outbound: _Outbound) -> bool:
        if not outbound.mover.can_send(outbound.num_in_flight):
            return False
        stream = outbound.ready[0]
        sending, plan = stream.sending, stream.plan
        message = sending.handoff.take(plan, self._clock(), self._max_layers(outbound, plan))
        if message is None:
            outbound.ready.popleft()
            stream.is_queued = False
            return True
        page_ids = sending.page_ids[message.first : message.first + message.num_pages]
        seed = plan.seed(message.index)
        pages = MessagePages(message.layer, page_ids, plan.stream.source_heads, seed, message.num_layers)
        outbound.num_in_flight += 1
        done = partial(self._on_sent, stream, message)
        outbound.mover.send(outbound.link, plan.tag(message.index), pages, done)
        return True

    def _max_layers(self, outbound: _Outbound, plan: StreamPlan) -> int:
        """How many layers the next message may have: the first message has one, so that the other end can begin."""
        if not outbound.joins_layers or not outbound.num_in_flight:
            return 1
        return max(1, MAX_JOINED_BYTES // plan.layer_bytes)

    def _on_sent(self, stream: _SendStream, message: Message, error: str | None) -> None:
        stream.outbound.num_in_flight -= 1
        now = self._clock()
        if error is None:
            self._counters.bytes_sent += message.num_bytes
            stream.outbound.moved_s = now
        self._apply(stream.sending, stream.sending.handoff.sent(message, error, now))

    def _apply(self, sending: _OutgoingTransfer, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case NotifyPeers(reason):
                    record = encode_record(Abort(sending.key.transfer_id, reason))
                    for stream in sending.streams:
                        self._channel.send_record(stream.outbound.link, record)
                case CloseLinks():
                    for stream in sending.streams:
                        self._drop(stream.outbound, f"{sending.key.destination.name} has stalled", is_unreachable=True)
                case FinishTransfer(reason, num_bytes, seconds, is_unreachable):
                    del self._outgoing[sending.key]
                    if reason is None:
                        self._counters.transfers_sent += 1
                        self._counters.seconds_sending += seconds
                        self._emit(Sent(sending.key, num_bytes, seconds))
                    else:
                        self._counters.transfers_failed += 1
                        self._emit(SendFailed(sending.key, reason, is_unreachable))

    def _outbound(self, me: PeerId, rank: int, destination: PeerId, address: TransferAddress) -> _Outbound:
        outbound = self._outbounds.get((destination, address))
        if outbound is None:
            link = self._channel.connect(address)
            outbound = _Outbound(destination, address, link, self._mover_of(link), self._clock() + self._peer_timeout_s)
            self._outbounds[destination, address] = self._by_link[link] = outbound
            self._channel.send_record(link, encode_record(LinkHello(me, rank, destination)))
        return outbound

    def _drop(self, outbound: _Outbound, reason: str, *, is_unreachable: bool = False) -> None:
        """Ends a link, and every transfer that uses it."""
        if self._by_link.pop(outbound.link, None) is None:
            return
        del self._outbounds[outbound.destination, outbound.address]
        outbound.is_open = False
        outbound.ready.clear()
        self._channel.disconnect(outbound.link)
        now = self._clock()
        for sending in list(self._outgoing.values()):
            if any(stream.outbound is outbound for stream in sending.streams):
                self._apply(sending, sending.handoff.fail(reason, now, is_unreachable=is_unreachable))


def _spell(address: TransferAddress) -> str:
    return f"{address.host}:{address.port}"
