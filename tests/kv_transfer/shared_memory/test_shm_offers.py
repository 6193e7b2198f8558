"""Offers of pages, as they go over a link between two ranks of a host."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from slipstream.kv_transfer.api.page_layout import PoolGeometry
from slipstream.kv_transfer.api.page_transport import MessagePages
from slipstream.kv_transfer.api.transport import MessageArrival
from slipstream.kv_transfer.shared_memory.shm_link import (
    OFFERS,
    Offer,
    ShmLink,
    encode_offer,
    encode_offers,
    read_offers,
)
from slipstream.kv_transfer.sockets.packet_socket import PacketSocket

GEOMETRY = PoolGeometry(num_layers=3, num_pages=8, num_heads=4, head_bytes=64)


def offered(*pages: MessagePages) -> list[MessageArrival]:
    """What a peer with a pool of this geometry offers, as it is read."""
    [packet] = encode_offers([encode_offer(some, number, tag=7) for number, some in enumerate(pages)], core=None)
    link = ShmLink(cast(PacketSocket, None), b"")
    return list(read_offers(link, GEOMETRY, packet.removeprefix(OFFERS)))


def test_an_offer_says_which_pages_in_which_layers_and_how_many_bytes_they_are() -> None:
    ids = np.array([5, 0, 7], np.int64)
    one, three = offered(MessagePages(2, ids, range(1, 3), 9), MessagePages(0, ids[:2], range(4), 9, num_layers=3))
    assert (one.num_bytes, three.num_bytes) == (3 * 2 * 64, 3 * 2 * 4 * 64)
    offers = [cast(Offer, arrival.handle) for arrival in (one, three)]
    assert [(offer.layer, offer.num_layers, offer.heads) for offer in offers] == [(2, 1, range(1, 3)), (0, 3, range(4))]
    assert [offer.page_ids.tolist() for offer in offers] == [[5, 0, 7], [5, 0]]


@pytest.mark.parametrize("page_id", [-1, 8])
def test_an_offer_of_several_layers_names_no_page_beyond_the_first(page_id: int) -> None:
    """It would be a page of the layer beside it."""
    with pytest.raises(ValueError, match="pages that its sender does not have"):
        offered(MessagePages(0, np.array([3, page_id], np.int64), range(4), 9, num_layers=2))
