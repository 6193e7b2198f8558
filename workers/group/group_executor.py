"""A tensor-parallel group as seen from rank 0: how its ranks meet, and one executor for all of them.

Rank 0 sends commands to each other rank over one TCP connection (the control link), and the ranks execute them in that
order. What the ranks exchange while they compute goes through torch.distributed. A group of one has no links and no
process group, and otherwise takes the same path.
"""

from __future__ import annotations

import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.router.protocol.codec import WireError
from slipstream.router.protocol.messages import RankUsage, Role
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.plan.executor import Executor, PageMemory
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.group.control_link import ControlLink, LinkClosed
from slipstream.workers.group.group_messages import (
    BeginEpoch,
    CancelTransfer,
    Execute,
    Expect,
    ForgetPeer,
    Join,
    RankFailed,
    RankReady,
    ReturnPages,
    SendPages,
    ServeAs,
    Shutdown,
)
from slipstream.workers.group.network_interface import use_interface_of
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.telemetry.worker_report import WorkerFailed
from slipstream.workers.transfers.group_transfers import GroupTransfers, RankOutcome

GATHER_TIMEOUT_S = 300.0
JOIN_TIMEOUT_S = 10.0
COLLECTIVE_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where rank 0 waits for the other ranks: the ports of torch.distributed's store and of the control link, and the
    `secret` that they have to present."""

    host: str
    distributed_port: int
    control_port: int
    secret: str


def join_process_group(store: TCPStore, rank: int, size: int, config: EngineConfig, host: str) -> TensorParallel:
    """Joins the group's collectives: gloo on CPUs, NCCL on GPUs. Blocks until all ranks are there. `host` is the
    address by which the others reach this rank."""
    use_interface_of(host)
    backend = "nccl" if config.device != "cpu" and torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return TensorParallel(rank, size, dist.group.WORLD)


def leave_process_group() -> None:
    """Ends what `join_process_group` began, so that this process can join another group. No collective may be under
    way."""
    dist.destroy_process_group()


class GroupRendezvous:
    """The two ports at which the other ranks find rank 0. They are bound from the start, so no other process can take
    them."""

    def __init__(self, host: str, size: int) -> None:
        """Raises OSError if the host is not one of this machine's."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.store = TCPStore(host, 0, size, is_master=True, wait_for_workers=False)
        self.address = GroupAddress(host, self.store.port, self._listener.getsockname()[1], secrets.token_hex(16))
        self._size = size

    def gather(self) -> list[RemoteRank]:
        """Waits until every other rank has joined. Raises WorkerFailed after `GATHER_TIMEOUT_S`."""
        deadline_s = time.monotonic() + GATHER_TIMEOUT_S
        ranks: dict[int, RemoteRank] = {}
        with self._listener as listener:
            while len(ranks) < self._size - 1:
                listener.settimeout(max(0.001, deadline_s - time.monotonic()))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, self._size)) - ranks.keys())
                    raise WorkerFailed(f"ranks {missing} did not join within {GATHER_TIMEOUT_S:g} s") from None
                rank = self._admit(connection)
                if rank is not None:
                    ranks[rank.rank] = rank
        return [ranks[rank] for rank in sorted(ranks)]

    def _admit(self, connection: socket.socket) -> RemoteRank | None:
        connection.settimeout(JOIN_TIMEOUT_S)
        link = ControlLink(connection)
        try:
            join = link.receive()
        except (LinkClosed, WireError) as error:
            log.warning("a stranger knocked at the control port: %s", error)
            link.close()
            return None
        if not isinstance(join, Join) or not _is_same(join.secret, self.address.secret):
            log.warning("a stranger knocked at the control port")
            link.close()
            return None
        connection.settimeout(None)
        return RemoteRank(join.rank, join.pid, link)


def _is_same(offered: str, secret: str) -> bool:
    return secrets.compare_digest(offered.encode(), secret.encode())  # `compare_digest` accepts only ASCII text


class RemoteRank:
    """Another rank as rank 0 sees it: its transfer agent, its executor, and whether it is still alive.

    A thread reads its link from the start: `outcomes` gets what its transfer agent reports, `usage` what its process
    takes, `broken` (at most once) why it cannot go on.
    """

    def __init__(self, rank: int, pid: int, link: ControlLink) -> None:
        self.rank = rank
        self.pid = pid
        self.link = link
        self._ready: queue.SimpleQueue[RankReady | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._closing = False

    def listen(
        self,
        outcomes: Callable[[int, RankOutcome], None],
        usage: Callable[[RankUsage], None],
        broken: Callable[[str], None],
    ) -> None:
        self._thread = threading.Thread(
            target=self._listen, args=(outcomes, usage, broken), name=f"rank-{self.rank}", daemon=True
        )
        self._thread.start()

    def wait_until_ready(self) -> RankReady:
        """Raises WorkerFailed if the rank gives up or dies."""
        ready = self._ready.get()
        if ready is None:
            raise WorkerFailed(self._failure)
        return ready

    def _listen(
        self,
        outcomes: Callable[[int, RankOutcome], None],
        usage: Callable[[RankUsage], None],
        broken: Callable[[str], None],
    ) -> None:
        self._failure = self._read(outcomes, usage)
        self._ready.put(None)
        if not self._closing:
            broken(self._failure)

    def _read(self, outcomes: Callable[[int, RankOutcome], None], usage: Callable[[RankUsage], None]) -> str:
        """Reads the link until it ends, and returns why it ended."""
        try:
            while True:
                match self.link.receive():
                    case RankOutcome() as outcome:
                        outcomes(self.rank, outcome)
                    case RankUsage() as taken:
                        usage(taken)
                    case RankReady() as ready:
                        self._ready.put(ready)
                    case RankFailed(reason):
                        return f"rank {self.rank}: {reason}"
                    case message:
                        return f"rank {self.rank} said {type(message).__name__}"
        except (LinkClosed, WireError) as error:
            return f"rank {self.rank} (pid {self.pid}) is gone: {error}"

    def close(self) -> None:
        """Tells the rank to end. (It also ends if this process dies without a word.)"""
        self._closing = True
        self.link.send_last(Shutdown())
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)  # it reads until the rank has closed its end
        self.link.close()

    def serve_as(self, role: Role) -> None:
        """Makes the rank compute for this role from the next step on."""
        self.link.send(ServeAs(role))

    def return_pages(self, page_ids: Sequence[int]) -> None:
        self.link.send(ReturnPages(tuple(page_ids)))

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> None:
        self.link.send(Expect(ticket, tuple(page_ids), source, source_tp))

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        self.link.send(SendPages(ticket, tuple(page_ids)))

    def cancel(self, transfer: TransferKey) -> None:
        self.link.send(CancelTransfer(transfer))

    def peer_lost(self, peer: PeerId) -> None:
        self.link.send(ForgetPeer(peer))

    def begin_epoch(self, worker: PeerId) -> None:
        self.link.send(BeginEpoch(worker))


@dataclass(slots=True)
class GroupExecutor:
    """Runs each plan on every rank; tokens are sampled on this one. `local` begins this rank's sends itself."""

    local: Executor
    others: Sequence[RemoteRank]
    transfers: GroupTransfers

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        for send in plan.sends:
            self.transfers.sending(send.ticket.key)
        if self.others:
            execute = Execute.of(plan)
            for rank in self.others:
                rank.link.send(execute)
        return self.local.execute(plan, sampling)


@dataclass(slots=True)
class GroupPages:
    """`PageMemory` of a group: every rank returns its part of a page."""

    local: PageMemory
    others: Sequence[RemoteRank]

    def return_pages(self, page_ids: Sequence[int]) -> None:
        for rank in self.others:
            rank.return_pages(page_ids)
        self.local.return_pages(page_ids)
