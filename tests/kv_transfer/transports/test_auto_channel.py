"""Which way a peer is called, and for how long it is believed that it does not take the better one."""

from __future__ import annotations

from typing import Any, cast

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.shared_memory.shm_link import ShmLink
from slipstream.kv_transfer.sockets.packet_socket import PacketSocket
from slipstream.kv_transfer.transports.auto_channel import FIRST_PATIENCE_S, AutoChannel

PEER, OTHER = TransferAddress("here", 1), TransferAddress("here", 2)


class Way:
    """A transport that says whom it was to call."""

    def __init__(self, is_shared: bool) -> None:
        self._is_shared = is_shared

    def start(self, events: Any) -> None: ...

    def connect(self, address: TransferAddress) -> Any:
        return ShmLink(cast(PacketSocket, None), b"") if self._is_shared else address


class Events:
    """Whoever drives the transport."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_a_peer_that_turns_shared_memory_down_is_asked_again_after_a_while_and_each_time_later() -> None:
    now = 100.0
    transport = AutoChannel(cast(Any, Way(True)), cast(Any, Way(False)), lambda: now)
    transport.start(cast(Any, Events()))
    patience_s = FIRST_PATIENCE_S
    for _ in range(3):
        link = transport.connect(PEER)
        assert isinstance(link, ShmLink)
        transport.on_lost(link, "too many open files")
        now += patience_s - 1
        assert transport.connect(PEER) == PEER, "it is called over the network meanwhile"
        assert isinstance(transport.connect(OTHER), ShmLink), "others are not meant"
        now += 1
        patience_s *= 2
    link = transport.connect(PEER)
    transport.on_record(link, b"")  # it takes it this time
    transport.on_lost(link, "it has died")
    assert isinstance(transport.connect(PEER), ShmLink)
