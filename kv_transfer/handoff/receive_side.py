"""The receiving half of a rank: leases, links from sources, and messages on their way into pages.

Runs on the transport thread alone. A message that arrives belongs to one of:

    a lease                 waits in its source's queue until there is room to receive it
    a transfer that ended   is discarded
    none of these yet       is kept, for `lease_s` at most, until `begin` claims it: the ranks of a group learn of a
                            reservation one by one, and a source may be faster than the last of them
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from slipstream.kv_transfer.api.page_layout import PageIds
from slipstream.kv_transfer.api.page_transport import MessagePages, PageTransport
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, ReceiveFailed, TransferEvent
from slipstream.kv_transfer.api.transport import Link, MessageArrival
from slipstream.kv_transfer.handoff.control_records import Abort, LinkHello, LinkWelcome, Record, Reject, encode_record
from slipstream.kv_transfer.handoff.message_plan import Message, MessageTag, StreamPlan
from slipstream.kv_transfer.handoff.state_machines import (
    Action,
    CloseLinks,
    FinishTransfer,
    Land,
    NotifyPeers,
    ReceiveHandoff,
)
from slipstream.kv_transfer.handoff.transfer_counters import Counters

MAX_UNCLAIMED = 4096
MAX_ENDED = 4096


@dataclass(slots=True, eq=False)
class _IncomingTransfer:
    key: TransferKey
    source: PeerId
    handoff: ReceiveHandoff
    page_ids: PageIds


@dataclass(slots=True, eq=False)
class _Source:
    """Arrivals of all leases from one peer, and how many of them are being received."""

    waiting: deque[tuple[_IncomingTransfer, MessageTag, MessageArrival]] = field(default_factory=deque)
    num_in_flight: int = 0
    moved_s: float = float("-inf")  # when a message of any of its transfers last arrived completely

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.num_in_flight


@dataclass(slots=True)
class _EndedTransfer:
    reason: str | None


@dataclass(slots=True)
class _Unclaimed:
    deadline: float
    arrivals: list[tuple[MessageTag, MessageArrival]] = field(default_factory=list)


class ReceiveSide:
    """Carries out what each `ReceiveHandoff` asks for, and ends each in one `Received` or `ReceiveFailed`."""

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
        self._counters = counters
        self._emit = emit
        self._clock = clock
        self._incoming: dict[TransferKey, _IncomingTransfer] = {}
        self._sources: dict[PeerId, _Source] = {}
        self._links: dict[Link, LinkHello | None] = {}
        self._ended: OrderedDict[TransferKey, _EndedTransfer] = OrderedDict()
        self._unclaimed: dict[TransferKey, _Unclaimed] = {}
        self._num_unclaimed = 0

    @property
    def num_transfers(self) -> int:
        return len(self._incoming)

    @property
    def num_links(self) -> int:
        return sum(hello is not None for hello in self._links.values())

    def next_deadline(self) -> float:
        """When `tick` has to be called next."""
        leases = min((r.handoff.deadline for r in self._incoming.values()), default=float("inf"))
        return min((u.deadline for u in self._unclaimed.values()), default=leases)

    def begin(self, ticket: HandoffTicket, source: PeerId, plans: list[StreamPlan], page_ids: PageIds) -> None:
        """Gives the ticket's pages, which are to land in `page_ids`, a lease. `plans` has one for each source rank."""
        now = self._clock()
        key = ticket.key
        if key in self._incoming:
            self._emit(ReceiveFailed(key, f"transfer {key.transfer_id} is being received already"))
            return
        handoff = ReceiveHandoff(plans, now, self._lease_s)
        receiving = self._incoming[key] = _IncomingTransfer(key, source, handoff, page_ids)
        self._sources.setdefault(source, _Source())
        actions = handoff.begin(now)
        if (ended := self._ended.get(key)) is not None:
            actions += handoff.fail(ended.reason or f"transfer {key.transfer_id} is over already", now)
        self._apply(receiving, actions)
        if (unclaimed := self._unclaimed.pop(key, None)) is not None:
            self._num_unclaimed -= len(unclaimed.arrivals)
            for tag, arrival in unclaimed.arrivals:
                self._queue(receiving, tag, arrival)

    def fail(self, key: TransferKey, reason: str, *, is_unreachable: bool = False) -> None:
        """Ends a transfer early, once nothing touches its pages. Unknown and ended ones are ignored."""
        receiving = self._incoming.get(key)
        if receiving is not None:
            self._apply(receiving, receiving.handoff.fail(reason, self._clock(), is_unreachable=is_unreachable))

    def peer_lost(self, peer: PeerId, reason: str) -> None:
        """Fails everything that the peer has yet to send, whether or not it ever connected."""
        for receiving in list(self._incoming.values()):
            if receiving.source == peer:
                self.fail(receiving.key, reason)
        for link, hello in list(self._links.items()):
            if hello is not None and hello.source == peer:
                self._drop(link, reason)

    def end_all(self, reason: str) -> None:
        """Fails all transfers, ends all links and discards all messages that wait."""
        for key in list(self._incoming):
            self.fail(key, reason)
        for link in list(self._links):
            self._drop(link, reason)
        for source in self._sources.values():
            while source.waiting:
                self._discard(source.waiting.popleft()[2])
        for unclaimed in self._unclaimed.values():
            for _, arrival in unclaimed.arrivals:
                self._discard(arrival)
        self._unclaimed.clear()
        self._num_unclaimed = 0

    def abandon(self, reason: str) -> None:
        """The last call, for what still has not ended. This thread touches no page after it, even if operations still
        count as in flight."""
        for receiving in list(self._incoming.values()):
            self._apply(receiving, [FinishTransfer(reason, 0, 0.0)])

    def on_link(self, link: Link) -> None:
        self._links[link] = None

    def on_record(self, me: PeerId, link: Link, record: Record) -> None:
        if link not in self._links:
            return  # it was sent before the link was cut
        match record:
            case LinkHello(_, _, destination) if destination != me:
                reason = f"this is {me.name} of epoch {me.epoch}, not {destination.name} of {destination.epoch}"
                self._channel.send_record(link, encode_record(Reject(reason)))
            case LinkHello(source):
                for other, known in list(self._links.items()):
                    if known is not None and known.source.name == source.name and known.source.epoch < source.epoch:
                        self._drop(other, f"{source.name} has restarted")
                self._links[link] = record
                self._channel.send_record(link, encode_record(LinkWelcome(self._mover_of(link).joins_layers)))
            case Abort(transfer_id, reason) if (hello := self._links[link]) is not None:
                self._on_abort(TransferKey(me, transfer_id), hello.source, reason)
            case _:
                self._drop(link, "it does not keep to the protocol")

    def on_lost(self, link: Link, reason: str) -> None:
        self._drop(link, reason, is_unreachable=True)

    def on_arrival(self, me: PeerId, arrival: MessageArrival) -> None:
        tag = MessageTag.unpack(arrival.tag)
        key = TransferKey(me, tag.transfer_id)
        receiving = self._incoming.get(key)
        if receiving is not None:
            self._queue(receiving, tag, arrival)
        elif key in self._ended or self._num_unclaimed >= MAX_UNCLAIMED:
            self._discard(arrival)
        else:
            unclaimed = self._unclaimed.setdefault(key, _Unclaimed(self._clock() + self._lease_s))
            unclaimed.arrivals.append((tag, arrival))
            self._num_unclaimed += 1

    def pump(self) -> bool:
        """Receives what has arrived, as far as there is room."""
        busy = False
        for source in self._sources.values():
            while source.waiting and self._has_room(source):
                self._post(source, *source.waiting.popleft())
                busy = True
        return busy

    def _has_room(self, source: _Source) -> bool:
        _, _, arrival = source.waiting[0]
        return self._mover_of(arrival.link).can_receive(source.num_in_flight)

    def tick(self, now: float) -> None:
        """Ends transfers without progress for too long, and forgets messages that no transfer waits for."""
        for receiving in list(self._incoming.values()):
            if receiving.handoff.deadline <= now:
                receiving.handoff.link_moved(self._sources[receiving.source].moved_s)
            self._apply(receiving, receiving.handoff.tick(now))
        for key, unclaimed in list(self._unclaimed.items()):
            if now >= unclaimed.deadline:
                del self._unclaimed[key]
                self._num_unclaimed -= len(unclaimed.arrivals)
                for _, arrival in unclaimed.arrivals:
                    self._discard(arrival)
        awaited = {receiving.source for receiving in self._incoming.values()}
        for peer in [peer for peer, source in self._sources.items() if peer not in awaited and source.is_idle]:
            del self._sources[peer]

    def _queue(self, receiving: _IncomingTransfer, tag: MessageTag, arrival: MessageArrival) -> None:
        receiving.handoff.arrived(self._clock())
        source = self._sources[receiving.source]
        source.waiting.append((receiving, tag, arrival))

    def _post(self, source: _Source, receiving: _IncomingTransfer, tag: MessageTag, arrival: MessageArrival) -> None:
        mover = self._mover_of(arrival.link)
        num_bytes = mover.payload_bytes(arrival)
        actions = receiving.handoff.accept(tag.source_rank, tag.index, num_bytes, self._clock())
        match actions:
            case [Land(plan, message)]:
                source.num_in_flight += 1
                page_ids = receiving.page_ids[message.first : message.first + message.num_pages]
                seed = plan.seed(message.index)
                pages = MessagePages(message.layer, page_ids, plan.stream.destination_heads, seed, message.num_layers)
                landed = partial(self._on_landed, source, receiving, plan, message)
                if message.num_layers == 1 or mover.joins_layers:
                    mover.receive(arrival, pages, landed)
                else:
                    mover.discard(arrival)
                    landed(f"{message.num_layers} layers in one message, where they are not joined", False)
            case _:
                mover.discard(arrival)
                self._apply(receiving, actions)

    def _on_landed(
        self,
        source: _Source,
        receiving: _IncomingTransfer,
        plan: StreamPlan,
        message: Message,
        error: str | None,
        is_whole: bool,
    ) -> None:
        source.num_in_flight -= 1
        now = self._clock()
        if is_whole:
            self._counters.bytes_received += message.num_bytes
            source.moved_s = now
        elif error is None:
            self._counters.checksum_failures += 1
        self._apply(receiving, receiving.handoff.received(plan, message, error, is_whole, now))

    def _on_abort(self, key: TransferKey, source: PeerId, reason: str) -> None:
        receiving = self._incoming.get(key)
        reason = f"{source.name} gave up: {reason}"
        if receiving is None:
            self._end(key, reason)
        elif receiving.source == source:
            self.fail(key, reason)

    def _end(self, key: TransferKey, reason: str | None) -> None:
        """Notes that messages which still arrive for this transfer are unwanted."""
        self._ended.setdefault(key, _EndedTransfer(reason))
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        if (unclaimed := self._unclaimed.pop(key, None)) is not None:
            self._num_unclaimed -= len(unclaimed.arrivals)
            for _, arrival in unclaimed.arrivals:
                self._discard(arrival)

    def _apply(self, receiving: _IncomingTransfer, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case NotifyPeers(reason):
                    record = encode_record(Abort(receiving.key.transfer_id, reason))
                    for link in self._links_from(receiving):
                        self._channel.send_record(link, record)
                case CloseLinks():
                    for link in self._links_from(receiving):
                        self._drop(link, f"{receiving.source.name} has stalled", is_unreachable=True)
                case FinishTransfer(reason, num_bytes, seconds, is_unreachable):
                    del self._incoming[receiving.key]
                    self._end(receiving.key, reason)
                    if reason is None:
                        self._counters.transfers_received += 1
                        self._counters.seconds_receiving += seconds
                        self._emit(Received(receiving.key, num_bytes, seconds))
                    else:
                        self._counters.transfers_failed += 1
                        self._emit(ReceiveFailed(receiving.key, reason, is_unreachable))

    def _links_from(self, receiving: _IncomingTransfer) -> list[Link]:
        ranks = {plan.stream.source_rank for plan in receiving.handoff.plans}
        return [
            link
            for link, hello in self._links.items()
            if hello is not None and hello.source == receiving.source and hello.source_rank in ranks
        ]

    def _discard(self, arrival: MessageArrival) -> None:
        self._mover_of(arrival.link).discard(arrival)

    def _drop(self, link: Link, reason: str, *, is_unreachable: bool = False) -> None:
        """Ends a link, and every transfer that still expects something over it."""
        if link not in self._links:
            return
        hello = self._links[link]
        affected = []
        if hello is not None:
            affected = [r for r in self._incoming.values() if link in self._links_from(r)]
        del self._links[link]
        self._channel.disconnect(link)
        for receiving in affected:
            self.fail(receiving.key, f"{receiving.source.name} is lost: {reason}", is_unreachable=is_unreachable)
