"""Tickets and pools for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress

PREFILL = PeerId("prefill-0", 1)
DECODE = PeerId("decode-0", 1)


def make_ticket(
    transfer_id: int = 1,
    *,
    destination: PeerId = DECODE,
    addresses: Sequence[TransferAddress] = (TransferAddress("nowhere", 1),),
    first_page: int = 0,
    num_pages: int = 10,
    slab_pages: int = 4,
    num_layers: int = 3,
    num_kv_heads: int = 4,
    head_bytes: int = 64,
) -> HandoffTicket:
    return HandoffTicket(
        transfer_id,
        destination,
        tuple(addresses),
        first_page,
        num_pages,
        slab_pages,
        num_layers,
        num_kv_heads,
        head_bytes,
    )


def pool_bytes(
    seed: int, num_layers: int = 3, num_pages: int = 64, num_heads: int = 4, head_bytes: int = 64
) -> npt.NDArray[np.uint8]:
    """Random bytes `[layers, pages, heads, head_bytes]`."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (num_layers, num_pages, num_heads, head_bytes), np.uint8)
