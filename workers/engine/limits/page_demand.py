"""How many pages a sequence takes, where layers with a window give theirs back."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageDemand:
    """`windows` are those of the page groups: a block of `page_tokens` tokens takes a page in each. A sequence is
    counted with the most pages that it holds at any time: in a group with a window, those of the window and of a step.
    Not where it `is_whole`: there all its pages are counted, as they may all be held or promised at once. Its state,
    which does not grow with the text, takes `state_pages` more."""

    page_tokens: int
    windows: tuple[int | None, ...]
    max_step_tokens: int
    is_whole: bool = False
    state_pages: int = 0

    @property
    def most_blocks(self) -> tuple[int | None, ...]:
        """The most pages that a sequence holds of each group at a time; None: one for each block."""
        if self.is_whole:
            return (None,) * len(self.windows)
        return tuple(None if window is None else self._most_blocks(window) for window in self.windows)

    def pages_for(self, num_tokens: int) -> int:
        """The most pages that a sequence holds while it comes to have the KV of so many tokens."""
        num_blocks = -(-num_tokens // self.page_tokens)
        of_tokens = sum(num_blocks if most is None else min(most, num_blocks) for most in self.most_blocks)
        return of_tokens + self.state_pages

    def most_tokens(self, num_pages: int, limit: int) -> int:
        """The longest sequence that so many pages hold, of at most `limit` tokens where that depends on nothing
        else."""
        if self.windows == (None,):
            return max(num_pages - self.state_pages, 0) * self.page_tokens
        return bisect_right(range(1, limit + 1), num_pages, key=self.pages_for)

    def _most_blocks(self, window: int) -> int:
        """Blocks that the tokens of a step lie in, together with those that the first of them sees."""
        return -(-(window + self.max_step_tokens - 2) // self.page_tokens) + 1
