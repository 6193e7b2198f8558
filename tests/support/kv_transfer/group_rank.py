"""A rank with a transfer agent over a process group, in a process of its own, driven from a test over a pipe."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import torch.distributed as dist

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import TransferEvent
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.nccl.process_group import ProcessGroupTransport
from tests.support.kv_transfer.forked import forked
from tests.support.kv_transfer.tickets import DECODE, PREFILL, pool_bytes


def _run_rank(rank: int, store: str, connection: Connection) -> None:
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)
    control, forth, back = (dist.new_group([0, 1], timeout=timeout) for _ in range(3))
    to, from_ = (forth, back) if rank == 0 else (back, forth)
    transport = ProcessGroupTransport(control, {1 - rank: to}, {1 - rank: from_})
    events: SimpleQueue[TransferEvent] = SimpleQueue()
    array = pool_bytes(rank)
    agent = TransferAgent(
        HostPagePool(array),
        rank=0,
        tp=1,
        peer=(PREFILL, DECODE)[rank],
        config=TransferConfig(slab_pages=4, staging_mib=1, lease_s=20.0),
        on_event=events.put,
        transport=transport,
    )
    connection.send(agent.address)
    while True:
        name, arguments = connection.recv()
        match name:
            case "expect":
                agent.expect(*arguments, PREFILL, 1)
                connection.send(None)
            case "send":
                agent.send(*arguments)
                connection.send(None)
            case "cancel":
                agent.cancel(*arguments)
                connection.send(None)
            case "next_event":
                connection.send(events.get(timeout=30))
            case "pages":
                connection.send(array[:, arguments[0]])
            case "close":
                agent.close()
                connection.send(agent.stats())
                return


class GroupRank:
    def __init__(self, rank: int, store: Path) -> None:
        context = forked()
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_run_rank, args=(rank, str(store), theirs))
        self.process.start()
        theirs.close()

    def answer(self) -> object:
        assert self._connection.poll(60), "no answer"
        return self._connection.recv()

    def call(self, name: str, *arguments: object) -> object:
        self._connection.send((name, arguments))
        return self.answer()

    def post(self, name: str) -> None:
        self._connection.send((name, ()))
