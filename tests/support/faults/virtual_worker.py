"""A worker as a process in virtual time: the real engine loop, role, engine, group transfers and hand-offs over a toy
model. What is played is only what surrounds them: the loop's inbox, the router connection, the wire."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.page_layout import PageIds
from slipstream.kv_transfer.api.page_transport import FaultInjection, PageTransport
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transport import Buffer
from slipstream.kv_transfer.handoff.message_plan import message_bytes
from slipstream.kv_transfer.handoff.receive_side import ReceiveSide
from slipstream.kv_transfer.handoff.send_side import SendSide
from slipstream.kv_transfer.handoff.transfer_counters import Counters
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.transports.staged import StagedMover
from slipstream.router.protocol.block_hash import pack_block_ids, unpack_block_ids
from slipstream.router.protocol.messages import (
    PROTOCOL_VERSION,
    Generate,
    Hello,
    Prefill,
    Reserve,
    Role,
    RouterMessage,
)
from slipstream.workers.engine.kv_cache.page_states import PageState
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import PageSend, SampledTokens, SamplingRow, SendProgress, StepPlan
from slipstream.workers.engine.scheduling.sequence import SequenceState
from slipstream.workers.engine_loop import EngineEvent, EngineLoop, LinkLost, TransferEnded
from slipstream.workers.group.rank_parts import RankAgent
from slipstream.workers.process.inbox import Inbox
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.telemetry.stats_collector import StatsCollector
from slipstream.workers.transfers.group_transfers import GroupTransfers, RankOutcome
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.faults.clockwork import Clockwork
from tests.support.faults.mock_process import MAX_MODEL_LEN, MAX_QUEUED_TOKENS
from tests.support.faults.page_wire import PageWire, VirtualTransport
from tests.support.faults.toy_model import (
    END_ID,
    HEAD_BYTES,
    NUM_HEADS,
    NUM_LAYERS,
    PAGE_TOKENS,
    VOCAB_SIZE,
    Pools,
    ToyRunner,
)
from tests.support.faults.virtual_process import Chances, Process, RouterDoor

PAGE_DTYPE = "toy"
LANDING = (PageState.RESERVED, PageState.DRAINING)
SENDING = (PageState.ACTIVE, PageState.RESERVED, PageState.HELD, PageState.DRAINING)


class EngineBrokenError(RuntimeError):
    """An injected fault: a step that does not come back."""


class WatchedPool(HostPagePool):
    """Pages that only the transfer whose lease they are under may touch."""

    state: Callable[[int], PageState]

    def scatter(self, layer: int, page_ids: PageIds, heads: range, src: Buffer) -> None:
        for page in page_ids.tolist():
            assert self.state(page) in LANDING, f"KV lands in page {page}, which is {self.state(page).name}"
        super().scatter(layer, page_ids, heads, src)

    def gather(self, layer: int, page_ids: PageIds, heads: range, out: Buffer) -> None:
        for page in page_ids.tolist():
            assert self.state(page) in SENDING, f"KV is sent from page {page}, which is {self.state(page).name}"
        super().gather(layer, page_ids, heads, out)


class VirtualAgent(TransferAgent):
    """The transfer agent without its thread: `turn` does what there is to do now."""

    def __init__(
        self,
        clock: Clockwork,
        pool: HostPagePool,
        rank: int,
        tp: int,
        config: TransferConfig,
        on_event: Callable[[Any], None],
        transport: VirtualTransport,
    ) -> None:
        self._pool, self._rank, self._tp, self._config = pool, rank, tp, config
        self._peer = self._serving = PeerId("nobody", 0)
        self._clock = clock
        self._counters = Counters()
        self._max_message_bytes = message_bytes(config.slab_pages, pool.geometry)
        staged = StagedMover(transport, pool, self._max_message_bytes, 6 * 4096, FaultInjection(0))
        opened = PageTransport.of(transport, staged)
        self._channel, self._movers = transport, opened.movers
        self._sender = SendSide(opened, config, self._counters, on_event, clock.time)
        self._receiver = ReceiveSide(opened, config, self._counters, on_event, clock.time)
        self._commands: deque[Callable[[], None]] = deque()
        self._is_signalled = self._is_closed = self._is_stopping = False
        self._lock = threading.Lock()
        transport.start(self)
        self._address = transport.address

    def turn(self) -> float:
        """When the next one is due."""
        while self._turn():
            pass
        return self._next_deadline()

    def _tick(self) -> None:
        self._sender.tick(self._clock.now)
        self._receiver.tick(self._clock.now)

    @property
    def num_held(self) -> int:
        """Transfers that are not over."""
        return self._held


class VirtualRank(RankAgent):
    """One rank's agent; that of a rank other than 0 hears of commands over its control link, a little later."""

    def __init__(self, worker: WorkerProcess, rank: int, pool: WatchedPool) -> None:
        self._page_dtype = PAGE_DTYPE
        self._device_pages = None
        self._worker = worker
        self._rank = rank
        self._link: deque[Callable[[], None]] = deque()
        clock = worker.clock
        self._timer = 0
        self._is_due = False
        self.transport = worker.wire.open(self._wake, worker.host)
        self.agent = self._agent = VirtualAgent(
            clock, pool, rank, worker.tp, worker.transfer, self._on_event, self.transport
        )
        self._ended = self._tell

    def _tell(self, outcome: RankOutcome) -> None:
        if self._rank == 0:
            self._worker.put(TransferEnded(0, outcome))
        else:
            delay_s = self._worker.clock.rng.random() * 0.002
            event = TransferEnded(self._rank, outcome)
            self._worker.clock.after(delay_s, lambda: self._worker.put(event))

    def hear(self, do: Callable[[], None]) -> None:
        if self._rank == 0:
            do()
            return
        self._link.append(do)
        self._worker.clock.after(self._worker.clock.rng.random() * 0.003, self._worker.gate(self.hear_next))

    def hear_next(self) -> None:
        if self._link:
            self._link.popleft()()

    def catch_up(self) -> None:
        """A step is computed together: before it, every rank has heard all that was said before."""
        while self._link:
            self._link.popleft()()

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> None:
        self.hear(partial(super().expect, ticket, page_ids, source, source_tp))

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        self.hear(partial(super().send, ticket, page_ids))

    def cancel(self, transfer: TransferKey) -> None:
        self.hear(partial(super().cancel, transfer))

    def peer_lost(self, peer: PeerId) -> None:
        self.hear(partial(super().peer_lost, peer))

    def begin_epoch(self, worker: PeerId) -> None:
        self.hear(partial(super().begin_epoch, worker))

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
        self.catch_up()
        super().begin_sends(sends)

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        super().layer_done(layer, progress)

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._worker.clock.after(0.0, self._worker.gate(self._turn))

    def _turn(self) -> None:
        self._is_due = False
        if not self._worker.is_alive:
            return
        due_s = self.agent.turn()
        if due_s != float("inf"):
            self._timer += 1
            timer = self._timer
            self._worker.clock.at(due_s + 0.001, self._worker.gate(lambda: self._on_timer(timer)))

    def _on_timer(self, timer: int) -> None:
        if timer == self._timer:
            self._wake()


class VirtualInbox(Inbox[EngineEvent]):
    """Nobody waits in it: `take` returns what is there."""

    def take(self, timeout_s: float | None) -> list[EngineEvent]:
        return super().take(0)

    @property
    def is_empty(self) -> bool:
        return not self._items


class WorkerProcess(Process):
    """A whole worker group; its other ranks live and die with it."""

    def __init__(
        self,
        clock: Clockwork,
        wire: PageWire,
        door: RouterDoor,
        chances: Chances,
        name: str,
        role: Role,
        host: str,
        tp: int,
        num_pages: int,
        max_slots: int,
        last_epoch: int,
        transfer: TransferConfig,
        on_end: Callable[[WorkerProcess], None],
        checks_often: bool,
        reserves_output: bool,
    ) -> None:
        super().__init__(clock, door, chances, name, role, on_end)
        self.wire, self.transfer, self.host, self.tp = wire, transfer, host, tp
        self._pid = last_epoch  # later ones have later epochs
        self._checks_often = checks_often
        self._turn_at_s = float("inf")
        self._num_turns = 0
        self.inbox = VirtualInbox(1 << 20)
        self.limits = EngineLimits(
            num_pages=num_pages,
            page_tokens=PAGE_TOKENS,
            max_model_len=min(num_pages * PAGE_TOKENS, MAX_MODEL_LEN),
            max_num_seqs=max_slots,
            max_step_tokens=clock.rng.choice((16, 40)),
            max_queued_tokens=MAX_QUEUED_TOKENS,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(END_ID,),
            model_id="toy",
            reserves_output=reserves_output,
        )
        self._pools = Pools(num_pages, tp)
        pools = [WatchedPool(array.view(np.uint8).reshape(*array.shape[:3], HEAD_BYTES)) for array in self._pools.ranks]
        self.ranks = [VirtualRank(self, rank, pool) for rank, pool in enumerate(pools)]
        self._transfers = GroupTransfers(self.ranks)
        self._runner = ToyRunner(self._pools, self.ranks, chances.sick, self._check_writes)
        self.engine = NativeEngine(self.limits, self)
        states = self.engine._scheduler.pages.pool._states
        for pool in pools:
            pool.state = states.state
        self._page_state = states.state
        addresses = tuple(rank.transport.address for rank in self.ranks)
        self.tickets = TicketIssuer(
            PeerId(name, last_epoch), addresses, transfer.slab_pages, NUM_LAYERS, NUM_HEADS, HEAD_BYTES, PAGE_DTYPE
        )
        self._loop = self._serve()
        self.wake()

    def _serve(self) -> EngineLoop:
        """A role begins."""
        engine, transfers = self.engine, self._transfers
        stats, lease_s = StatsCollector(engine, transfers), self.transfer.lease_s
        return EngineLoop(
            engine=engine,
            protocol=WorkerProtocol.in_role(self.role, engine, transfers, self.tickets, lease_s, stats, drain_s=10.0),
            transfers=transfers,
            inbox=self.inbox,
            router=self,
            tickets=self.tickets,
            hello=self._greeting,
            show=lambda state, progress: None,
            clock=self.clock.time,
        )

    def die(self) -> None:
        for rank in self.ranks:
            rank.transport.die()

    def put(self, event: EngineEvent) -> None:
        if self.is_alive:
            self.inbox.put_always(event)
            self.wake()

    def wake(self, at_s: float | None = None) -> None:
        at_s = max(self.clock.now if at_s is None else at_s, self._busy_until_s)
        if at_s < self._turn_at_s:
            self._turn_at_s = at_s
            self.clock.at(at_s, self.gate(lambda: self._turn(at_s)))

    def _turn(self, at_s: float) -> None:
        if at_s != self._turn_at_s:
            return  # there was an earlier one, and it has set another
        self._turn_at_s = float("inf")
        self._num_turns += 1
        try:
            self._loop.turn()
        except EngineBrokenError:
            self._loop._say_goodbye("engine failed: an injected fault")
            self.kill()
            return
        if self._checks_often or self._num_turns % 8 == 0:
            self.engine.check_integrity()
        if self._loop.protocol.is_finished:
            next_role = self._loop.run()
            if next_role is None:
                self.kill()
                return
            self.role = next_role
            self._loop = self._serve()
        if self._loop.can_reconnect or not self.inbox.is_empty:
            self.wake()
        else:
            wait_s = self._loop.next_turn_s()
            if wait_s is not None:
                self.wake(max(self.clock.now + wait_s, self.clock.now))

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        """One step; what it says is written when it is over."""
        if self._chances.engine_breaks():
            raise EngineBrokenError
        for send in plan.sends:
            self._transfers.sending(send.ticket.key)
        for rank in self.ranks:
            rank.catch_up()
        sampled = self._runner.execute(plan, sampling)
        self._busy_until_s = self.clock.now + 0.002 + 0.0005 * plan.arrays.num_tokens * self.clock.rng.random()
        return sampled

    def _check_writes(self, pages: NDArray[np.int32]) -> None:
        for page in pages.tolist():
            assert self._page_state(page) is PageState.ACTIVE, f"a step writes page {page}, which nobody runs on"

    def hear(self, message: RouterMessage) -> None:
        self._check_credits(message)
        self.put(message)

    def lost_router(self) -> None:
        self.put(LinkLost())

    def tell_the_truth(self) -> None:
        """Credits and blocks are told when they change: a lie, or a loss, that was the last word would stand."""
        if self._told_lie:
            self._loop.protocol._credits = None
        if self._has_lost_blocks:
            self._loop.protocol.blocks.resync()
        self.wake()

    def _greeting(self, worker: PeerId) -> Hello:
        limits = self.limits
        return Hello(
            version=PROTOCOL_VERSION,
            token="",
            worker=worker,
            role=self.role,
            model="toy",
            tp=self.tp,
            pid=self._pid,
            addresses=self.tickets.addresses,
            page_tokens=PAGE_TOKENS,
            num_pages=limits.num_pages,
            max_slots=limits.max_num_seqs,
            max_queued_tokens=limits.max_queued_tokens,
            max_model_len=limits.max_model_len,
            reserves_output=limits.reserves_output and self.role == "decode",
        )

    def _check_credits(self, frame: RouterMessage) -> None:
        """Work that comes must have been paid for by what this worker has told. What it has grown by since, by
        decoding, the router could not know; so only that is looked at which does not grow by itself."""
        if self.was_lied_about or not isinstance(frame, Generate | Reserve | Prefill):
            return
        pending = [item for item in self.inbox._items if isinstance(item, Generate | Reserve | Prefill)]
        capacity = self.engine.capacity()
        request = frame.request
        if self.role == "prefill":
            assert isinstance(frame, Prefill), f"{type(frame).__name__} for a prefill worker"
            pages = tokens = 0
            for item in (*pending, frame):
                num_tokens = (len(item.request.prompt_ids) + len(item.request.output_ids)) // 4
                pages += self.limits.pages_for(num_tokens)
                tokens += num_tokens
            growth = 1 + self.limits.num_pages // 64  # what the engine keeps free once something runs
            assert pages <= capacity.free_pages + growth, "pages overspent"
            assert tokens <= capacity.free_tokens, "tokens overspent"
        elif self.engine.state((request.request_id, request.attempt)) is None:
            new = [item for item in (*pending, frame) if self.engine.state(_key(item)) is None]
            keys = {_key(item) for item in new}
            assert len(keys) <= capacity.free_slots, "slots overspent"

    @property
    def free(self) -> tuple[int, int, int]:
        """Slots, pages and tokens."""
        capacity = self.engine.capacity()
        return capacity.free_slots, capacity.free_pages, capacity.free_tokens

    def works_on(self, request_id: str) -> bool:
        """Whether it does anything but wait for a transfer to let go."""
        states = [self.engine.state(key) for key in self.engine.keys() if key[0] == request_id]  # noqa: SIM118
        return any(state is not SequenceState.DRAINING for state in states)

    @property
    def num_in_flight(self) -> int:
        """Messages of pages."""
        return sum(rank.transport.num_in_flight for rank in self.ranks)

    @property
    def cached_blocks(self) -> frozenset[int]:
        """What its prefix cache holds."""
        return frozenset(unpack_block_ids(pack_block_ids(self.engine.prefix_cache.digests())))

    def check_at_rest(self) -> None:
        """Nothing is left here of any request."""
        self.engine.check_integrity()
        left = {
            state: count
            for state, count in self.engine.page_counts().items()
            if state not in ("free", "cached", "withheld")
        }
        assert not any(left.values()), f"{self.name}: pages left: {left}"
        assert not self.engine.keys(), f"{self.name}: sequences left: {self.engine.keys()}"
        assert self._loop.protocol.role.num_attempts == 0
        assert self._transfers.num_active == 0
        for rank in self.ranks:
            assert rank.agent.num_held == 0, f"{self.name}: transfers left: {rank.agent.stats()}"
        assert self._is_welcome, f"{self.name} is not connected"


def _key(message: Generate | Reserve | Prefill) -> tuple[str, int]:
    return message.request.request_id, message.request.attempt
