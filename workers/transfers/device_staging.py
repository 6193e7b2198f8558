"""Moves pages from device memory to device memory: gathers, sends and scatters them without passing through the host.

    pages --kernel--> [ staging in device memory ] ==UCX, cuda_ipc or RDMA==> [ staging ] --kernel--> pages

UCX knows nothing about streams. So a buffer is given to UCX only after the event behind the gathering kernel has
occurred, and a staging slot is reused only after the event behind the scattering kernel has.

There is no checksum. On the host it costs nothing beside the copy. Here it would take a separate kernel, and a look at
its result from the host, for each message at both ends, which costs more than the copy. The errors it would find are
covered in other ways: device memory and NVLink detect and correct errors, and a wrong message differs from the expected
one in tag or size. So both ends of a link must be of this kind: for an end that expects a checksum, every message has
the wrong size, and the transfer fails.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from slipstream.kernels.gpu_modules import gpu_module
from slipstream.kv_transfer.api.page_transport import Landed, MessagePages
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transport import Buffer, Done, Link, MessageArrival, Transport
from slipstream.kv_transfer.transports.staging import Staging, receive_into_scrap
from slipstream.workers.transfers.device_pages import DevicePagePool, PageCopy

MAX_IN_FLIGHT = 8
SPIN_S = 50e-6  # copying a slab takes less than this
PAUSE_S = 50e-6


@dataclass(frozen=True, slots=True)
class _Gathering:
    event: torch.cuda.Event | None
    link: Link
    tag: int
    memory: Tensor
    sent: Done


@dataclass(frozen=True, slots=True)
class _Scattering:
    event: torch.cuda.Event | None
    slot: int
    landed: Landed


class DeviceStagedMover:
    """A `PageMover` over any `Transport` that accepts device memory. For the arguments see `StagedMover`."""

    def __init__(self, transport: Transport, pool: StagedDevicePool, message_bytes: int, staging_bytes: int) -> None:
        self._transport = transport
        self._pool = pool
        self._outgoing = Staging(message_bytes, staging_bytes // 2, pool.staging_memory)
        self._incoming = Staging(message_bytes, staging_bytes // 2, pool.staging_memory)
        self._gatherings: deque[_Gathering] = deque()  # in the order in which their stream executes them
        self._scatterings: deque[_Scattering] = deque()
        self._is_current = False  # whether the thread has made the device its current one
        self._spin_until = 0.0
        # At most half of the slots, so that a peer that has stalled cannot stop the others.
        self._max_in_flight = max(1, min(MAX_IN_FLIGHT, self._outgoing.num_slots // 2))

    @property
    def joins_layers(self) -> bool:
        return False

    @property
    def num_in_flight(self) -> int:
        return self._transport.num_in_flight + len(self._gatherings) + len(self._scatterings)

    def payload_bytes(self, arrival: MessageArrival) -> int:
        return arrival.num_bytes

    def can_send(self, num_in_flight: int) -> bool:
        return num_in_flight < self._max_in_flight and bool(self._outgoing.num_free)

    def can_receive(self, num_in_flight: int) -> bool:
        return num_in_flight < self._max_in_flight and bool(self._incoming.num_free)

    def send(self, link: Link, tag: int, pages: MessagePages, done: Done) -> None:
        num_bytes = len(pages.page_ids) * len(pages.heads) * self._pool.geometry.head_bytes
        slot, memory = self._outgoing.take(num_bytes)
        event = self._pool.queue_gather(pages.layer, pages.page_ids, pages.heads, memory)
        self._gatherings.append(_Gathering(event, link, tag, memory, partial(self._on_sent, slot, done)))

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        slot, memory = self._incoming.take(arrival.num_bytes)
        self._transport.receive(arrival, _buffer(memory), partial(self._on_received, pages, slot, memory, landed))

    def discard(self, arrival: MessageArrival) -> None:
        receive_into_scrap(self._transport, arrival)

    def work(self) -> bool:
        if not self._is_current and self._pool.device.type == "cuda":
            torch.cuda.set_device(self._pool.device)  # UCX maps memory in the context of the calling thread
            self._is_current = True
        busy = False
        while self._gatherings and _has_passed(self._gatherings[0].event):
            self._post(self._gatherings.popleft())
            busy = True
        while self._scatterings and _has_passed(self._scatterings[0].event):
            self._finish(self._scatterings.popleft())
            busy = True
        if busy:
            self._keep_awake()
        return busy

    def pause(self) -> bool:
        # Copies take microseconds; what they hold up is not to sleep on a file descriptor. But pages may wait for a
        # layer that is still to be computed, and a thread that never pauses keeps the interpreter from the one that
        # queues the model's kernels: that one gives it up at each launch, and would wait up to 5 ms to have it back.
        if not self._gatherings and not self._scatterings:
            return False
        if time.perf_counter() >= self._spin_until:
            time.sleep(PAUSE_S)
        return True

    def give_up(self) -> None:
        while self._gatherings:
            gathering = self._gatherings.popleft()
            _wait_for(gathering.event)
            gathering.sent("the transport is closed")
        while self._scatterings:
            scattering = self._scatterings.popleft()
            _wait_for(scattering.event)
            self._finish(scattering)

    def _post(self, gathering: _Gathering) -> None:
        """Sends a message whose pages are gathered. If its link has gone down meanwhile, the link fails the message."""
        self._transport.send(gathering.link, gathering.tag, _buffer(gathering.memory), gathering.sent)

    def _keep_awake(self) -> None:
        self._spin_until = time.perf_counter() + SPIN_S

    def _on_sent(self, slot: int, done: Done, error: str | None) -> None:
        self._keep_awake()
        self._outgoing.give_back(slot)
        done(error)

    def _on_received(self, pages: MessagePages, slot: int, memory: Tensor, landed: Landed, error: str | None) -> None:
        self._keep_awake()
        if error is None:
            event = self._pool.queue_scatter(pages.layer, pages.page_ids, pages.heads, memory)
            self._scatterings.append(_Scattering(event, slot, landed))
        else:
            self._incoming.give_back(slot)
            landed(error, False)

    def _finish(self, scattering: _Scattering) -> None:
        self._incoming.give_back(scattering.slot)
        scattering.landed(None, True)


class StagedDevicePool(DevicePagePool):
    """A `DevicePagePool` whose pages travel from device to device."""

    def staging_memory(self, num_bytes: int) -> Tensor:
        with self.copying():
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def page_mover(self, transport: Transport, message_bytes: int, staging_bytes: int) -> DeviceStagedMover:
        """Raises StagingError."""
        return DeviceStagedMover(transport, self, message_bytes, staging_bytes)


def device_page_pool(kv: Tensor, config: TransferConfig) -> DevicePagePool:
    """The page pool for a tensor on a GPU. Pages stay on devices with NCCL, and if `tls` (UCX_TLS) names a transport
    that accepts device memory. Otherwise UCX would crash on it, so pages pass through the host."""
    copy: PageCopy | None = gpu_module("pages.gpu.page_copy")
    stay = config.transport == "nccl" or "cuda" in config.tls
    return StagedDevicePool(kv, copy) if stay else DevicePagePool(kv, copy)


def _buffer(memory: Tensor) -> Buffer:
    """Device memory in the guise of a buffer: it has a length and says where it is (`__cuda_array_interface__`), and
    UCX asks for no more."""
    return cast(Buffer, memory) if memory.is_cuda else memory.numpy()


def _has_passed(event: torch.cuda.Event | None) -> bool:
    return event is None or event.query()  # type: ignore[no-untyped-call]


def _wait_for(event: torch.cuda.Event | None) -> None:
    if event is not None:
        event.synchronize()
