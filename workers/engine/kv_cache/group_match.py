"""Finds the longest cached prefix of a sequence whose layers see different numbers of keys.

A prefix of n blocks is a hit if groups without a window have the pages of all its blocks, and groups with one those
that the next query sees:

    blocks          0  1  2  3  4  5  6  7
    no window       x  x  x  x  x  x  -  -
    window 2 blocks -  -  x  x  x  -  -  -     a hit of 5 blocks; not of 6, for which block 5 is missing
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.router.protocol.block_hash import HashChain
from slipstream.workers.engine.kv_cache.prefix_cache import PrefixCache
from slipstream.workers.engine.limits.engine_limits import EngineLimits


@dataclass(frozen=True, slots=True)
class GroupMatch:
    """A prefix of `num_blocks` blocks. `pages` are by group those of its last blocks, as far as the next query sees
    them."""

    num_blocks: int
    pages: tuple[list[int], ...]


def match_groups(
    cache: PrefixCache,
    limits: EngineLimits,
    chain: HashChain,
    tokens: array[int],
    max_blocks: int,
    next_position: int = 0,
) -> GroupMatch:
    """The longest hit of at most `max_blocks` blocks for a query that follows it or, if that is later, is at
    `next_position`."""
    chain.extend(tokens, max_blocks)
    num_blocks = max_blocks
    full: list[list[int]] = []
    for group, window in enumerate(limits.windows):
        if window is None:
            full.append(cache.match(chain, tokens, num_blocks, group))
            num_blocks = min(num_blocks, len(full[-1]))

    def first_of(window: int | None) -> int:
        return min(limits.first_block(window, max(num_blocks * limits.page_tokens, next_position)), num_blocks)

    at_group, num_passed = len(full), len(full)  # groups with a window that have all pages of the present prefix
    num_groups = len(limits.windows)
    while num_passed < num_groups:
        missing = _last_missing(cache, chain, tokens, at_group, first_of(limits.windows[at_group]), num_blocks)
        if missing is not None:
            num_blocks, num_passed = missing, len(full)
            continue  # with the same group
        num_passed += 1
        at_group = at_group + 1 if at_group + 1 < num_groups else len(full)
    pages = [of_group[:num_blocks] for of_group in full]
    for group in range(len(full), num_groups):
        seen = range(first_of(limits.windows[group]), num_blocks)
        found = [cache.find(chain, tokens, at, group) for at in seen]
        pages.append(_all(found))
    return GroupMatch(num_blocks, tuple(pages))


def match_checkpoint(
    cache: PrefixCache,
    limits: EngineLimits,
    chain: HashChain,
    tokens: array[int],
    max_blocks: int,
    state_groups: range,
) -> tuple[GroupMatch, list[int], int]:
    """The longest hit of at most `max_blocks` blocks behind which a state is kept, the pages of the state, and how many
    blocks groups without a window have: all where there is no such group. Where nothing is stored but states, the hit
    has no other pages."""
    chain.extend(tokens, max_blocks)
    num_shared, full = max_blocks, list[list[int]]()
    if limits.state_pages:
        for group in range(limits.windows.count(None)):
            full.append(cache.match(chain, tokens, num_shared, group))
            num_shared = len(full[-1])
    for num_blocks in range(num_shared, 0, -1):
        at = num_blocks - 1
        if cache.page_of(chain.digests[at], state_groups[-1]) is None:
            continue
        state = [cache.find(chain, tokens, at, group) for group in state_groups]
        pages: list[list[int | None]] = [[*of_group[:num_blocks]] for of_group in full]
        for group in range(len(full), len(limits.windows)):
            first = limits.first_block(limits.windows[group], num_blocks * limits.page_tokens)
            seen = range(min(first, num_blocks), num_blocks) if limits.state_pages else ()
            pages.append([cache.find(chain, tokens, block, group) for block in seen])
        if None not in state and not any(None in of_group for of_group in pages):
            return GroupMatch(num_blocks, tuple(_all(of_group) for of_group in pages)), _all(state), num_shared
    none = GroupMatch(0, tuple([] for _ in limits.windows))
    return none, [], num_shared


def _all(pages: Iterable[int | None]) -> list[int]:
    return [page for page in pages if page is not None]


def match_full_groups(
    cache: PrefixCache, limits: EngineLimits, chain: HashChain, tokens: array[int], max_blocks: int
) -> GroupMatch:
    """The longest prefix whose pages groups without a window have. No page of other groups is part of it; where there
    are no others, nothing is."""
    pages: list[list[int]] = []
    for group in range(limits.windows.count(None)):
        pages.append(cache.match(chain, tokens, max_blocks, group))
        max_blocks = min(max_blocks, len(pages[-1]))
    num_blocks = max_blocks if pages else 0
    return GroupMatch(
        num_blocks, tuple(pages[g][:num_blocks] if g < len(pages) else [] for g in range(len(limits.windows)))
    )


def _last_missing(
    cache: PrefixCache, chain: HashChain, tokens: array[int], group: int, first: int, end: int
) -> int | None:
    """The last of the blocks `first .. end` that has no page in a group; None if all have one."""
    for at in reversed(range(first, end)):
        if cache.find(chain, tokens, at, group) is None:
            return at
    return None
