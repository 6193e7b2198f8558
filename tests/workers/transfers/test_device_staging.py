"""Pages that travel from device to device through whole agents; on the CPU its memory stands for the device's."""

from __future__ import annotations

from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.page_transport import MessagePages
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, ReceiveFailed, SendFailed, Sent, TransferEvent
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.transports.staging import Staging, StagingError
from slipstream.workers.transfers import device_staging
from slipstream.workers.transfers.device_staging import DeviceStagedMover, StagedDevicePool
from tests.support.kv_transfer.loopback import LoopbackNetwork

PREFILL, DECODE = PeerId("prefill-0", 1), PeerId("decode-0", 1)
LAYERS, PAGES, HEADS = 3, 20, 4
CONFIG = TransferConfig(slab_pages=4, staging_mib=1, lease_s=5.0)


class Rank:
    """An agent over a pool of random pages."""

    def __init__(self, network: LoopbackNetwork, peer: PeerId, rank: int, tp: int, *, on_device: bool = True) -> None:
        self.kv = torch.randn(LAYERS, PAGES, HEADS // tp, 2, 16, 8, generator=torch.manual_seed(tp * 10 + rank))
        as_bytes = self.kv.view(torch.uint8).flatten(3).numpy()
        pool = StagedDevicePool(self.kv) if on_device else HostPagePool(as_bytes)
        self.events: SimpleQueue[TransferEvent] = SimpleQueue()
        self.agent = TransferAgent(
            pool, rank=rank, tp=tp, peer=peer, config=CONFIG, on_event=self.events.put, transport=network.open()
        )

    def next_event(self) -> TransferEvent:
        return self.events.get(timeout=10)


def ticket(destinations: list[Rank], num_pages: int) -> HandoffTicket:
    addresses = tuple(rank.agent.address for rank in destinations)
    head_bytes = 2 * 16 * 8 * 4
    return HandoffTicket(1, DECODE, addresses, 0, num_pages, CONFIG.slab_pages, LAYERS, HEADS, head_bytes)


@pytest.mark.parametrize(("source_tp", "destination_tp"), [(1, 1), (2, 1), (1, 2)])
def test_pages_arrive_whatever_the_degrees(source_tp: int, destination_tp: int) -> None:
    network = LoopbackNetwork()
    sources = [Rank(network, PREFILL, rank, source_tp) for rank in range(source_tp)]
    destinations = [Rank(network, DECODE, rank, destination_tp) for rank in range(destination_tp)]
    source_ids, page_ids = [5, 0, 19, 7, 3, 11], [1, 18, 2, 9, 4, 12]
    order = ticket(destinations, len(page_ids))
    before = torch.cat([rank.kv for rank in destinations], dim=2).clone()
    for rank in destinations:
        rank.agent.expect(order, page_ids, PREFILL, source_tp)
    for rank in sources:
        rank.agent.send(order, source_ids, len(source_ids))
    assert all(isinstance(rank.next_event(), Sent) for rank in sources)
    assert all(isinstance(rank.next_event(), Received) for rank in destinations)
    for rank in sources + destinations:
        rank.agent.close()
    sent = torch.cat([rank.kv for rank in sources], dim=2)
    arrived = torch.cat([rank.kv for rank in destinations], dim=2)
    before[:, page_ids] = sent[:, source_ids]
    assert torch.equal(arrived, before)


def test_an_end_without_checksums_and_one_with_do_not_understand_each_other_and_say_so() -> None:
    network = LoopbackNetwork()
    source = Rank(network, PREFILL, 0, 1)
    destination = Rank(network, DECODE, 0, 1, on_device=False)
    order = ticket([destination], 4)
    destination.agent.expect(order, [1, 2, 3, 4], PREFILL, 1)
    source.agent.send(order, [1, 2, 3, 4], 4)
    assert isinstance(destination.next_event(), ReceiveFailed)
    assert isinstance(source.next_event(), SendFailed | Sent)
    for rank in (source, destination):
        rank.agent.close()


def test_memory_for_less_than_two_messages_is_refused() -> None:
    with pytest.raises(StagingError, match="at least 2 are needed"):
        Staging(8000, 16000, StagedDevicePool(torch.zeros(1, 1, 1, 8)).staging_memory)


def test_a_layer_that_is_still_being_computed_is_waited_for_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without, the thread that queues the model's kernels would get the interpreter only every few milliseconds."""

    class LatePool(StagedDevicePool):
        def queue_gather(self, *args: Any, **kwargs: Any) -> Any:
            return SimpleNamespace(query=lambda: False)

    now, pauses = [100.0], list[float]()
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=pauses.append)
    monkeypatch.setattr(device_staging, "time", clock)
    mover = DeviceStagedMover(LoopbackNetwork().open(), LatePool(torch.zeros(1, 2, 1, 64)), 4096, 1 << 16)
    mover.send(SimpleNamespace(), 1, MessagePages(0, np.array([1]), range(1), 0), lambda error: None)
    assert not mover.work()
    assert mover.pause()
    assert pauses == [device_staging.PAUSE_S]
    assert mover.num_in_flight == 1
