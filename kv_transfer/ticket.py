"""The paper that a hand-off travels on: who sends which pages where, in plain values that fit in a message.

Every request brings a ticket, and peers are looked up with every message: so these are named tuples (`router.codec`).
"""

from __future__ import annotations

from typing import NamedTuple


class PeerId(NamedTuple):
    """A worker group and its incarnation. A restarted or reconnected worker has a new epoch; old tickets are void."""

    name: str
    epoch: int


class TransferAddress(NamedTuple):
    """Where a rank's transport listens."""

    host: str
    port: int


class TransferKey(NamedTuple):
    """Names a transfer on either side."""

    destination: PeerId
    transfer_id: int


class HandoffTicket(NamedTuple):
    """A landing place that a decode worker has reserved.

    The pages of the sequence from `first_page` on are wanted, `num_pages` of them (the pages before are already
    there). They travel in slabs of `slab_pages` pages and one layer; both sides derive the same list of messages,
    their sizes and tags from this ticket alone (see `kv_transfer.plan`). `transfer_id` is unique within the
    destination's epoch. `page_dtype` says what the pages hold, which nobody here looks at: equally many bytes can mean
    different numbers.
    """

    transfer_id: int
    destination: PeerId
    addresses: tuple[TransferAddress, ...]  # one a destination rank
    first_page: int
    num_pages: int
    slab_pages: int
    num_layers: int
    num_kv_heads: int  # of the whole model
    head_bytes: int  # K and V of one head of one page
    page_dtype: str = ""

    @property
    def key(self) -> TransferKey:
        return TransferKey(self.destination, self.transfer_id)
