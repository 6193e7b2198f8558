"""Workers of one rank each, to move pages between."""

from __future__ import annotations

import math
from itertools import count
from queue import SimpleQueue

import numpy as np

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.page_layout import PoolGeometry
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, Sent, TransferEvent
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.pool_memory import PoolMemory
from tests.support.kv_transfer.tickets import make_ticket
from tests.support.kv_transfer.waiting import EVENT_S

SHAPE = (2, 32, 2, 8192)  # [layers, pages, heads, head_bytes]
PAGE_IDS = range(16)  # that a ticket is for

transfer_ids = count()


class Rank:
    """The only rank of a worker, with a pool of `shape` full of one value. If the pool `is_shared`, peers on this host
    may read it."""

    def __init__(
        self,
        peer: PeerId,
        value: int,
        config: TransferConfig,
        *,
        is_shared: bool,
        shape: tuple[int, int, int, int] = SHAPE,
        token: str = "",
    ) -> None:
        self.peer = peer
        self._slab_pages = config.slab_pages
        self.memory = PoolMemory(math.prod(shape)) if is_shared else None
        buffer = self.memory.buffer if self.memory is not None else bytearray(math.prod(shape))
        self.pages = np.frombuffer(buffer, np.uint8).reshape(shape)
        self.pages[:] = value
        self.events: SimpleQueue[TransferEvent] = SimpleQueue()
        pool = HostPagePool(self.pages, self.memory)
        self.agent = TransferAgent(pool, rank=0, tp=1, peer=peer, config=config, on_event=self.events.put, token=token)

    def ticket(self) -> HandoffTicket:
        geometry = PoolGeometry(*self.pages.shape)
        return make_ticket(
            next(transfer_ids),
            destination=self.peer,
            addresses=[self.agent.address],
            num_pages=len(PAGE_IDS),
            slab_pages=self._slab_pages,
            num_layers=geometry.num_layers,
            num_kv_heads=geometry.num_heads,
            head_bytes=geometry.head_bytes,
        )

    def next_event(self) -> TransferEvent:
        return self.events.get(timeout=EVENT_S)


def transfer(source: Rank, destination: Rank) -> tuple[TransferEvent, TransferEvent]:
    """Sends the pages `PAGE_IDS`. Returns what each end said at last."""
    ticket = destination.ticket()
    destination.agent.expect(ticket, PAGE_IDS, source.peer, 1)
    source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    return source.next_event(), destination.next_event()


def assert_transfers(source: Rank, destination: Rank) -> None:
    destination.pages[:] = 0
    sent, received = transfer(source, destination)
    assert isinstance(received, Received), received
    assert isinstance(sent, Sent), sent
    assert (destination.pages[:, PAGE_IDS] == source.pages[:, PAGE_IDS]).all()
