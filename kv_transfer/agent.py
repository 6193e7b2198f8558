"""The transfer agent of a rank: the shell around the hand-offs.

One thread drives the transport, the copying and the checksums. Public calls only check their arguments and put a
command into that thread's queue. Events are delivered on that thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np

from slipstream.kv_transfer.api.page_layout import HeadStream, PageIds, streams_between
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import TransferEvent, TransferStats
from slipstream.kv_transfer.api.transport import Link, MessageArrival, Transport
from slipstream.kv_transfer.handoff.control_records import RecordError, check_peer, decode_record
from slipstream.kv_transfer.handoff.message_plan import StreamPlan, TicketError, message_bytes
from slipstream.kv_transfer.handoff.receive_side import ReceiveSide
from slipstream.kv_transfer.handoff.send_side import SendSide
from slipstream.kv_transfer.handoff.transfer_counters import Counters
from slipstream.kv_transfer.memory.host_pages import TransferPool
from slipstream.kv_transfer.transports.open_transport import open_page_transport

log = logging.getLogger(__name__)

TICK_S = 0.05  # how late a lease may be noticed while the thread is busy
CLOSE_S = 5.0


class AgentClosedError(RuntimeError):
    """The agent was closed, or its thread has died; nothing can be transferred any more."""


class TransferAgent:
    """Sends pages of `pool` to other ranks and receives pages into it. `expect` to `close` may be called on any thread;
    the callbacks of the channel (`on_...`) come on the agent's own.

    `peer` is the worker group that this rank belongs to, `rank` of `tp`. `on_event` is called on the agent's thread;
    it must not block and must not raise. Each `send` and each `expect` that returned ends in exactly one event.
    `token` is the cluster's secret: peers that do not know it are refused. `transport` replaces the one that `config`
    names. Raises StagingError if a message might not fit the staging memory, TransportError if the transport cannot be
    opened, and ValueError for a bad peer or rank.
    """

    def __init__(
        self,
        pool: TransferPool,
        *,
        rank: int,
        tp: int,
        peer: PeerId,
        config: TransferConfig,
        on_event: Callable[[TransferEvent], None],
        token: str = "",
        transport: Transport | None = None,
    ) -> None:
        if not 0 <= rank < tp:
            raise ValueError(f"rank must be in 0..{tp - 1}, got {rank}")
        check_peer(peer)
        self._pool = pool
        self._rank = rank
        self._tp = tp
        self._peer = peer
        self._config = config
        self._counters = Counters()
        self._max_message_bytes = message_bytes(config.slab_pages, pool.geometry)
        opened = open_page_transport(pool, config, token, transport)
        self._channel = opened.channel
        self._movers = opened.movers
        self._sender = SendSide(opened, config, self._counters, on_event)
        self._receiver = ReceiveSide(opened, config, self._counters, on_event)
        # The identity that arrivals belong to. It follows `_peer`, but is changed by the thread, in order with
        # commands.
        self._serving = peer
        self._commands: deque[Callable[[], None]] = deque()
        self._is_signalled = False
        self._lock = threading.Lock()  # orders public calls against `close`
        self._is_closed = False
        self._is_stopping = False
        self._next_tick = 0.0
        self._channel.start(self)
        self._address = self._channel.address
        self._thread = threading.Thread(target=self._run, name=f"kv-transfer-{rank}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> TransferAddress:
        """Where peers reach this rank, for tickets."""
        return self._address

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> TransferKey:
        """Expect the ticket's pages, which are to land in `page_ids`, in order. Ends in Received or ReceiveFailed.

        Raises TicketError if the ticket does not fit this rank, AgentClosedError.
        """
        ids = self._check(ticket, page_ids)
        if ticket.destination != self._peer:
            raise TicketError(f"the ticket is for {ticket.destination}, this is {self._peer}")
        if len(ticket.addresses) != self._tp:
            raise TicketError(f"the ticket has {len(ticket.addresses)} addresses for {self._tp} ranks")
        if len(set(ids.tolist())) != len(ids):
            raise TicketError("two of the ticket's pages would land in the same page")
        streams = self._streams(source_tp, self._tp, ticket)
        plans = [StreamPlan(ticket, stream) for stream in streams if stream.destination_rank == self._rank]
        self._submit(lambda: self._receiver.begin(ticket, source, plans, ids))
        return ticket.key

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int], num_ready_pages: int = 0) -> TransferKey:
        """Send the ticket's pages, which `page_ids` names in order, as `pages_ready` releases them.

        The first `num_ready_pages` pages of the sequence are complete in all layers (cached prefix). Ends in Sent or
        SendFailed. Raises TicketError if the ticket does not fit this rank, AgentClosedError.
        """
        ids = self._check(ticket, page_ids)
        streams = self._streams(self._tp, len(ticket.addresses), ticket)
        plans = [StreamPlan(ticket, stream) for stream in streams if stream.source_rank == self._rank]
        self._submit(lambda: self._sender.begin(self._serving, ticket, plans, ids, num_ready_pages))
        return ticket.key

    def pages_ready(self, key: TransferKey, layer: int, num_pages: int) -> None:
        """The first `num_pages` pages of the sequence hold this layer, and will not change. Ignored for transfers that
        are unknown or have ended. Costs the caller a few microseconds."""
        self._submit_unless_closed(lambda: self._sender.pages_ready(key, layer, num_pages))

    def cancel(self, key: TransferKey) -> None:
        """Give up a transfer. Its event follows once nothing touches its pages. Ignored if it has ended."""

        def cancel() -> None:
            self._sender.fail(key, "cancelled")
            self._receiver.fail(key, "cancelled")

        self._submit_unless_closed(cancel)

    def peer_lost(self, peer: PeerId) -> None:
        """A peer is known to be gone: fail all transfers with it now."""

        def lose() -> None:
            self._sender.peer_lost(peer, f"{peer.name} is lost")
            self._receiver.peer_lost(peer, f"{peer.name} is lost")

        self._submit_unless_closed(lose)

    def begin_epoch(self, peer: PeerId) -> None:
        """From now on this rank belongs to the incarnation `peer`: all transfers fail, all links end, and older tickets
        are void. The address stays the same."""
        check_peer(peer)

        def begin() -> None:
            self._sender.end_all(f"{peer.name} begins epoch {peer.epoch}")
            self._receiver.end_all(f"{peer.name} begins epoch {peer.epoch}")
            self._serving = peer

        self._peer = peer
        self._submit(begin)

    def stats(self) -> TransferStats:
        return TransferStats(
            **asdict(self._counters),
            leases_held=self._receiver.num_transfers,
            sends_held=self._sender.num_transfers,
            messages_in_flight=self._num_in_flight,
            links_open=self._sender.num_links + self._receiver.num_links,
        )

    def close(self) -> None:
        """Fail what is left, end all links and the thread. May be called more than once, not from `on_event`."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = self._is_stopping = True
                self._channel.wake()
        self._thread.join()

    def on_link(self, link: Link) -> None:
        self._receiver.on_link(link)

    def on_record(self, link: Link, record: bytes) -> None:
        try:
            decoded = decode_record(record)
        except RecordError as error:
            self.on_lost(link, str(error))
            return
        if self._sender.owns(link):
            self._sender.on_record(link, decoded)
        else:
            self._receiver.on_record(self._serving, link, decoded)

    def on_arrival(self, arrival: MessageArrival) -> None:
        self._receiver.on_arrival(self._serving, arrival)

    def on_lost(self, link: Link, reason: str) -> None:
        if self._sender.owns(link):
            self._sender.on_lost(link, reason)
        else:
            self._receiver.on_lost(link, reason)

    def _run(self) -> None:
        try:
            for mover in self._movers:
                mover.work()
            while not self._is_stopping:
                if not self._turn():
                    self._wait(max(0.0, self._next_deadline() - time.monotonic()))
            self._wind_up("the transfer agent is closed", CLOSE_S)
        except Exception as error:
            # The one broad handler: whatever went wrong, every transfer still ends.
            log.exception("the transfer agent has failed")
            self._wind_up(f"the transfer agent has failed: {error}", 0.0)

    def _turn(self) -> bool:
        """One round of everything; True if there was anything to do."""
        busy = self._channel.progress()
        for mover in self._movers:
            busy |= mover.work()
        busy |= self._run_commands()
        busy |= self._receiver.pump()
        busy |= self._sender.pump()
        self._tick()
        return busy

    def _wait(self, timeout_s: float) -> None:
        if not any(mover.pause() for mover in self._movers):
            self._channel.wait(timeout_s)

    def _run_commands(self) -> bool:
        # The flag is cleared before the queue is read, so a thread that finds it set afterwards knows that we will
        # still read.
        self._is_signalled = False
        busy = bool(self._commands)
        while self._commands:
            self._commands.popleft()()
        return busy

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_tick:
            self._sender.tick(now)
            self._receiver.tick(now)
            self._next_tick = now + TICK_S

    def _next_deadline(self) -> float:
        return min(self._sender.next_deadline(), self._receiver.next_deadline())

    def _wind_up(self, reason: str, patience_s: float) -> None:
        with self._lock:  # so that no thread wakes a transport that is being closed
            self._is_closed = True
        try:
            self._run_commands()
            self._sender.end_all(reason)
            self._receiver.end_all(reason)
            deadline = time.monotonic() + patience_s
            while (self._num_in_flight or self._held) and time.monotonic() < deadline:
                if not self._turn():
                    self._wait(TICK_S)
            self._channel.close()
            for mover in self._movers:
                mover.give_up()
        finally:
            # Operations that a failure has interrupted will never end by themselves.
            self._sender.abandon(reason)
            self._receiver.abandon(reason)

    @property
    def _num_in_flight(self) -> int:
        return sum(mover.num_in_flight for mover in self._movers)

    @property
    def _held(self) -> int:
        return self._sender.num_transfers + self._receiver.num_transfers

    def _submit(self, command: Callable[[], None]) -> None:
        if not self._submit_unless_closed(command):
            raise AgentClosedError("the transfer agent is closed")

    def _submit_unless_closed(self, command: Callable[[], None]) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            self._commands.append(command)
            if not self._is_signalled:
                self._is_signalled = True
                self._channel.wake()
            return True

    def _streams(self, source_tp: int, destination_tp: int, ticket: HandoffTicket) -> tuple[HeadStream, ...]:
        try:
            return streams_between(source_tp, destination_tp, ticket.num_kv_heads)
        except ValueError as error:
            raise TicketError(str(error)) from error

    def _check(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> PageIds:
        geometry = self._pool.geometry
        for name, theirs, ours in (
            ("num_layers", ticket.num_layers, geometry.num_layers),
            ("num_kv_heads", ticket.num_kv_heads, geometry.num_heads * self._tp),
            ("head_bytes", ticket.head_bytes, geometry.head_bytes),
        ):
            if theirs != ours:
                raise TicketError(f"{name} of the ticket is {theirs}, this rank has {ours}")
        num_bytes = message_bytes(ticket.slab_pages, geometry)
        if num_bytes > self._max_message_bytes:
            raise TicketError(
                f"slabs of {ticket.slab_pages} pages do not fit this rank's staging buffers, "
                f"which are made for {self._config.slab_pages}"
            )
        ids = np.asarray(page_ids, np.int64)
        if ids.shape != (ticket.num_pages,):
            raise TicketError(f"the ticket wants {ticket.num_pages} pages, got ids of {ids.shape}")
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= geometry.num_pages):
            raise TicketError(f"page ids must be in 0..{geometry.num_pages - 1}, got {ids.min()}..{ids.max()}")
        return ids
