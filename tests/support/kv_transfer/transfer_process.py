"""A transfer agent in an operating-system process of its own, driven from a test over a pipe."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.page_layout import PoolGeometry
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import TransferEvent, TransferStats
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.pool_memory import PoolMemory
from tests.support.kv_transfer.forked import forked

START_S = 60.0
REPLY_S = 60.0


def page_content(peer: PeerId, rank: int, geometry: PoolGeometry) -> npt.NDArray[np.uint8]:
    """What the pool of a rank holds at first; tests compute it for themselves instead of asking."""
    generator = np.random.default_rng(zlib.crc32(f"{peer.name}/{rank}".encode()))
    shape = (geometry.num_layers, geometry.num_pages, geometry.num_heads, geometry.head_bytes)
    return generator.integers(0, 256, shape, np.uint8)


class _Server:
    """Runs in the child. Methods that a `TransferProcess` may call have no underscore."""

    def __init__(self, peer: PeerId, rank: int, tp: int, geometry: PoolGeometry, config: TransferConfig) -> None:
        content = page_content(peer, rank, geometry)
        memory = PoolMemory(content.nbytes)
        self._array = np.frombuffer(memory.buffer, np.uint8).reshape(content.shape)
        self._array[:] = content
        self._events: SimpleQueue[TransferEvent] = SimpleQueue()
        self._agent = TransferAgent(
            HostPagePool(self._array, memory), rank=rank, tp=tp, peer=peer, config=config, on_event=self._events.put
        )

    def address(self) -> TransferAddress:
        return self._agent.address

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> None:
        self._agent.expect(ticket, page_ids, source, source_tp)

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int], num_ready_pages: int) -> None:
        self._agent.send(ticket, page_ids, num_ready_pages)

    def pages_ready(self, key: TransferKey, layers: Sequence[int], num_pages: int) -> None:
        for layer in layers:
            self._agent.pages_ready(key, layer, num_pages)

    def compute_and_send(self, ticket: HandoffTicket, page_ids: Sequence[int], chunk_pages: int) -> int:
        """Prefill in small: write the pages chunk by chunk and layer by layer, telling the agent after each layer,
        as a compute thread does. Returns the bytes that were sent before the last layer of all began, which waits a
        while for the first ones."""
        array, num_layers = self._array, ticket.num_layers
        content = array[:, page_ids].copy()
        array[:, page_ids] = 0
        sent_at_first = self._agent.stats().bytes_sent
        key = self._agent.send(ticket, page_ids)
        sent_before_the_end = 0
        for first in range(0, ticket.num_pages, chunk_pages):
            chunk = slice(first, min(first + chunk_pages, ticket.num_pages))
            for layer in range(num_layers):
                if chunk.stop == ticket.num_pages and layer == num_layers - 1:
                    deadline = time.monotonic() + REPLY_S / 2
                    while not sent_before_the_end and time.monotonic() < deadline:
                        time.sleep(0.001)  # the layer's computation
                        sent_before_the_end = self._agent.stats().bytes_sent - sent_at_first
                array[layer, page_ids[chunk]] = content[layer, chunk]
                self._agent.pages_ready(key, layer, ticket.first_page + chunk.stop)
        return sent_before_the_end

    def cancel(self, key: TransferKey) -> None:
        self._agent.cancel(key)

    def peer_lost(self, peer: PeerId) -> None:
        self._agent.peer_lost(peer)

    def begin_epoch(self, peer: PeerId) -> None:
        self._agent.begin_epoch(peer)

    def next_event(self, timeout_s: float) -> TransferEvent | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def wait_for_bytes_received(self, num_bytes: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._agent.stats().bytes_received < num_bytes:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def pages(self, page_ids: Sequence[int]) -> npt.NDArray[np.uint8]:
        return self._array[:, page_ids]

    def stats(self) -> TransferStats:
        return self._agent.stats()

    def idle_cpu_s(self, seconds: float) -> float:
        """CPU time that this process uses in so many seconds of doing nothing."""
        began = time.process_time()
        time.sleep(seconds)
        return time.process_time() - began

    def close(self) -> None:
        self._agent.close()


def _serve(connection: Connection, *args: Any) -> None:
    server = _Server(*args)
    connection.send(None)
    while True:
        name, arguments = connection.recv()
        try:
            result = getattr(server, name)(*arguments)
        except Exception as error:  # told to the test, which raises it
            result = error
        connection.send(result)
        if name == "close":
            return


class TransferProcess:
    """The test's end: `call(method of the server, arguments...)`."""

    def __init__(
        self,
        peer: PeerId,
        geometry: PoolGeometry,
        *,
        rank: int = 0,
        tp: int = 1,
        config: TransferConfig,
    ) -> None:
        context = forked()
        self._connection, theirs = context.Pipe()
        self.peer = peer
        self.rank = rank
        self.geometry = geometry
        self._process = context.Process(target=_serve, args=(theirs, peer, rank, tp, geometry, config), daemon=True)
        self._process.start()
        theirs.close()
        self._is_ready = False
        self._address: TransferAddress | None = None

    @property
    def address(self) -> TransferAddress:
        if self._address is None:
            self._address = self.call("address")
        return self._address

    @property
    def initial_pages(self) -> npt.NDArray[np.uint8]:
        return page_content(self.peer, self.rank, self.geometry)

    def call(self, name: str, *arguments: object) -> Any:
        if not self._is_ready:
            assert self._connection.poll(START_S), "the process did not start"
            self._connection.recv()
            self._is_ready = True
        self._connection.send((name, arguments))
        assert self._connection.poll(REPLY_S), f"no answer to {name}"
        result = self._connection.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def next_event(self, timeout_s: float = 20.0) -> Any:
        event = self.call("next_event", timeout_s)
        assert event is not None, "no event"
        return event

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End the process, by itself if it can."""
        if self._process.is_alive():
            self.signal(signal.SIGCONT)
            self.call("close")
            self._process.join(10)
        self._connection.close()
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise AssertionError("the process did not end")
        self._process.close()
