"""Which pages of a sequence a transfer carries. Both ends derive the same list from the ticket and the page groups.

The list goes block by block and within a block group by group. It leaves out what the destination has, and what no
query will see there. For a prompt of 8 blocks of which the destination has 2, with a window of 3 blocks in group 1:

    block      0  1  2  3  4  5  6  7
    group 0    .  .  0  1  2  3  5  7         numbers in the list
    group 1    .  .  .  .  .  4  6  8

The pages of a state, which is that after the last token, come last; none while a sequence goes on.

Tickets count pages from `first_page` on: the first block that is not there, so that a list of one group has the
numbers of its blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.workers.engine.limits.engine_limits import EngineLimits


@dataclass(frozen=True, slots=True)
class WantedPages:
    """Blocks `firsts[group] .. end` of each group; none of a group whose first is `end`. Then `state_pages` more."""

    firsts: tuple[int, ...]
    end: int
    state_pages: int = 0

    @staticmethod
    def of_prompt(limits: EngineLimits, first_block: int, num_tokens: int) -> WantedPages:
        """What a sequence of `num_tokens` tokens lacks whose first blocks are there, before its next token is
        computed."""
        firsts = _firsts(limits, first_block, first_block, num_tokens)
        return WantedPages(firsts, limits.blocks_for(num_tokens), limits.state_pages)

    @staticmethod
    def of_full_blocks(limits: EngineLimits, first_block: int, end: int) -> WantedPages:
        """The pages up to block `end` that stay what they are, however long the sequence becomes: those of groups
        without a window."""
        return WantedPages(tuple(first_block if window is None else end for window in limits.windows), end)

    @staticmethod
    def of_rest(limits: EngineLimits, first_block: int, num_tokens: int, end: int) -> WantedPages:
        """What a sequence lacks that stands still with at least `num_tokens` tokens, the last of them not computed,
        and whose blocks before `first_block` are there in groups without a window."""
        return WantedPages(_firsts(limits, first_block, 0, num_tokens - 1), end, limits.state_pages)

    @staticmethod
    def of_ticket(limits: EngineLimits, ticket: HandoffTicket, *, is_rest: bool) -> WantedPages | None:
        """What a ticket of a sequence that moves asks for; None if it does not fit these groups."""
        state_pages = limits.state_pages if is_rest else 0
        first, count = ticket.first_page, ticket.num_pages - state_pages
        if not limits.has_windows:
            firsts: tuple[int, ...] = (first,) * len(limits.windows)
        elif is_rest:
            firsts = _firsts(limits, first, 0, ticket.num_tokens - 1)
        else:
            firsts = tuple(first for window in limits.windows if window is None)
        if not firsts:
            return WantedPages((first,) * len(limits.windows), first) if count == 0 else None
        end, rest = divmod(count + sum(firsts), len(firsts))
        if rest or end < max(firsts):
            return None
        return WantedPages((*firsts, *(end,) * (len(limits.windows) - len(firsts))), end, state_pages)

    @property
    def num_pages(self) -> int:
        return sum(self.end - first for first in self.firsts) + self.state_pages

    def num_before(self, block: int) -> int:
        """Pages of the list that belong to blocks before this one."""
        return sum(max(0, min(block, self.end) - first) for first in self.firsts)

    def ids(self, tables: Items[array[int]], state_pages: array[int]) -> list[int]:
        """The list. `tables` are the sequence's pages by group, which reach up to `end`."""
        of_state = state_pages.tolist() if self.state_pages else []
        if len(self.firsts) == 1:
            return tables[0][self.firsts[0] : self.end].tolist() + of_state
        return [
            table[block]
            for block in range(min(self.firsts), self.end)
            for table, first in zip(tables, self.firsts, strict=True)
            if block >= first
        ] + of_state


def _firsts(limits: EngineLimits, first_block: int, first_seen: int, position: int) -> tuple[int, ...]:
    return tuple(
        first_block if window is None else max(first_seen, limits.first_block(window, position))
        for window in limits.windows
    )
