"""The ticket of a hand-off, which says who sends which pages where, in plain values that fit into a message.

Every remote request has a ticket, and peers are looked up with every message, so these are named tuples (see
`router.protocol.codec`).
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

    Wanted are `num_pages` pages of the sequence, from `first_page` on (the pages before are already there). They are
    sent in slabs of `slab_pages` pages of one layer. Both sides derive the same list of messages, with their sizes and
    tags, from this ticket alone (see `handoff.message_plan`). `transfer_id` is unique within the destination's epoch.
    `page_dtype` says what the pages hold; the transfer does not look at it, but the same number of bytes can mean
    different numbers. Nor does it look at `num_tokens`: where layers of the model have windows, it is the number of
    tokens of a sequence that moves, by which both ends know which pages are wanted.
    """

    transfer_id: int
    destination: PeerId
    addresses: tuple[TransferAddress, ...]  # one per destination rank
    first_page: int
    num_pages: int
    slab_pages: int
    num_layers: int
    num_kv_heads: int  # of the whole model
    head_bytes: int  # K and V of one head of one page
    page_dtype: str = ""
    num_tokens: int = 0

    @property
    def key(self) -> TransferKey:
        return TransferKey(self.destination, self.transfer_id)
