"""Issues the tickets under which prefill workers send pages here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress


@dataclass(slots=True)
class TicketIssuer:
    """Issues tickets of the worker's present incarnation. `transfer_id`s are unique even across incarnations."""

    worker: PeerId  # before the first `open_epoch`, with the epoch before the first
    addresses: tuple[TransferAddress, ...]  # one per rank
    slab_pages: int
    num_layers: int
    num_kv_heads: int  # of the whole model
    head_bytes: int  # K and V of one head of one page
    page_dtype: str = ""  # what pages hold (see `rank_parts.page_dtype`)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def open_epoch(self) -> PeerId:
        """Begins a new incarnation, for a new connection to the router. Tickets issued before are void."""
        self.worker = PeerId(self.worker.name, self.worker.epoch + 1)
        return self.worker

    def issue(self, first_page: int, num_pages: int, num_tokens: int = 0) -> HandoffTicket:
        """A ticket for the pages `first_page .. first_page + num_pages` of one sequence. For `num_tokens` see
        `HandoffTicket`."""
        return HandoffTicket(
            next(self._ids),
            self.worker,
            self.addresses,
            first_page,
            num_pages,
            self.slab_pages,
            self.num_layers,
            self.num_kv_heads,
            self.head_bytes,
            self.page_dtype,
            num_tokens,
        )
