"""Pages that are reserved for KV from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.workers.engine.scheduling.sequence import AttemptKey


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation. `page_ids` are the pages wanted from elsewhere: all those of the prompt from page number
    `first_page` on, the last of which may be partial. The pages before already hold `num_cached_tokens` tokens."""

    key: AttemptKey
    num_cached_tokens: int
    first_page: int
    page_ids: tuple[int, ...]
