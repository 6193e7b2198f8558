"""Where UCX is not installed, workers of one host exchange pages all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transport import TransportError
from slipstream.kv_transfer.transports import open_transport
from tests.support.kv_transfer.ranks import Rank, assert_transfers


@pytest.fixture(autouse=True)
def without_ucx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transport, "has_ucx", lambda: False)


@pytest.fixture
def two_ranks() -> Iterator[tuple[Rank, Rank]]:
    config = TransferConfig(slab_pages=4, staging_mib=2, lease_s=10.0)
    ranks = Rank(PeerId("a", 1), 7, config, is_shared=True), Rank(PeerId("b", 1), 0, config, is_shared=True)
    yield ranks
    for rank in ranks:
        rank.agent.close()


def test_pages_go_through_shared_memory(two_ranks: tuple[Rank, Rank]) -> None:
    assert_transfers(*two_ranks)


def test_a_deployment_that_asks_for_ucx_is_refused_with_what_to_install() -> None:
    with pytest.raises(TransportError, match=r"transport ucx: UCX is not installed \(pip install 'slipstream\[cpu\]'"):
        Rank(PeerId("a", 1), 0, TransferConfig(transport="ucx"), is_shared=True)


def test_pages_on_a_gpu_are_refused_with_what_to_install() -> None:
    on_device: Any = object()
    with pytest.raises(TransportError, match="device memory, which takes UCX; UCX is not installed"):
        open_transport.open_page_transport(on_device, TransferConfig(), "")
