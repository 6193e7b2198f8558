"""How many pages of a worker a sequence takes."""

from __future__ import annotations


def pages_of(num_tokens: int, page_tokens: int, group_pages: tuple[int, ...], state_pages: int) -> int:
    """The most pages that a sequence of so many tokens holds at a time; for `group_pages` and `state_pages` see
    `Hello`."""
    num_blocks = -(-num_tokens // page_tokens)
    if not group_pages:
        return num_blocks + state_pages
    return sum([min(most, num_blocks) if most else num_blocks for most in group_pages]) + state_pages
