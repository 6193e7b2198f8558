"""The rounds in which a migration copies the pages of a running sequence.

While one round is copied, the sequence decodes on and fills the pages of the next. In the last round the source stands
still, so it should be short. Sans-IO.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.router.config.router_config import MigrationConfig
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.request_state import RequestState

MAX_ROUNDS = 5  # the last included
MIN_ROOM_TOKENS = 4
FIRST_LATE_TOKENS = 8.0  # assumed before any move has been seen


class Round(NamedTuple):
    """The destination's reservation: `num_pages` in all, of which `num_full_pages` will have been copied at the end of
    a round that is not the last. The last one leaves room for `num_room_tokens` more than are known."""

    is_last: bool
    num_full_pages: int
    num_room_tokens: int
    num_pages: int


class CopyRounds:
    def __init__(self, config: MigrationConfig) -> None:
        self._config = config
        # How many tokens lately came between the request for the last round and the moment the source stood still.
        self._late_tokens = FIRST_LATE_TOKENS

    def plan(self, state: RequestState, destination: WorkerState, num_copied_pages: int, num_rounds: int) -> Round:
        """The next round, after `num_rounds`, if the destination holds the first `num_copied_pages`."""
        num_full_pages = (state.num_tokens - 1) // destination.hello.page_tokens  # the last token's KV is not there yet
        is_last = num_full_pages - num_copied_pages < self._config.precopy_pages or num_rounds >= MAX_ROUNDS - 1
        num_room_tokens = self.room_tokens(state) if is_last else 0
        num_pages = destination.decode_pages(state.num_tokens + max(num_room_tokens - 1, 0), state.most_tokens)
        return Round(is_last, num_full_pages, num_room_tokens, num_pages)

    def room_tokens(self, state: RequestState) -> int:
        """For how many tokens beyond the known ones a last round should leave room, because they come before the source
        stands still. With more room than needed, empty pages are sent; with less, the migration is off."""
        num_left = max(state.request.sampling.max_tokens - len(state.output), 1)
        return min(max(int(2 * self._late_tokens), MIN_ROOM_TOKENS), num_left)

    def observe_late(self, num_tokens: int) -> None:
        """Learns how many tokens came between the request for a last round and its source's stop."""
        self._late_tokens = max(num_tokens, 0.8 * self._late_tokens)
