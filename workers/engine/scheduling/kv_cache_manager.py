"""The pages of sequences: taken when one is admitted or reserved, extended when full, and given up at the end.

The state of a sequence determines the state of its pages in the pool; here, both change together.
"""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.workers.engine.kv_cache.page_pool import PagePool
from slipstream.workers.engine.kv_cache.page_states import PageState
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.scheduling.sequence import Sequence, SequenceState


class KvCacheManager:
    """Takes and gives back the pages of sequences. Where a method has `spare`, it leaves so many pages to others."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.pool = PagePool(limits.num_pages)
        self.num_queried_tokens = 0  # looked up in the prefix cache when a sequence first took pages
        self.num_hit_tokens = 0

    def take(self, sequence: Sequence, num_tokens: int, owner: PageState, spare: int) -> bool:
        """Pages for `num_tokens` tokens, from the prefix cache as far as it goes. At least one token is left to
        compute (or receive): the next token is sampled from the last one's hidden state, which is not cached. False,
        with nothing taken, if there are too few."""
        max_shared = (sequence.num_tokens - 1) // self._limits.page_tokens if sequence.chain else 0
        shared = self.pool.cache.match(sequence.chain, sequence.tokens, max_shared) if sequence.chain else []
        pages = self.pool.acquire(shared, self._limits.pages_for(num_tokens) - len(shared), owner, spare)
        if pages is None:
            return False
        num_state_pages = self._limits.state_pages
        if num_state_pages:
            sequence.state_pages = pages[-num_state_pages:]
            del pages[-num_state_pages:]
        sequence.pages = pages
        sequence.num_computed = len(shared) * self._limits.page_tokens
        sequence.num_remembered = len(shared)
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
            self.num_queried_tokens += sequence.num_tokens
            self.num_hit_tokens += sequence.num_computed
        return True

    def grow(self, sequence: Sequence, num_tokens: int, spare: int = 0) -> bool:
        """Take pages for so many tokens in all. False, with nothing taken, if there are too few."""
        num_missing = self._limits.pages_for(num_tokens) - len(sequence.held_pages)
        if num_missing > 0:
            owner = sequence.page_owner
            assert owner is not None
            new = self.pool.acquire((), num_missing, owner, spare)
            if new is None:
                return False
            sequence.pages.extend(new)
        return True

    def remember(self, sequence: Sequence) -> None:
        """Put pages that have become full into the prefix cache."""
        num_full = sequence.num_computed // self._limits.page_tokens
        if sequence.chain is not None and num_full > sequence.num_remembered:
            self.pool.remember(sequence.pages, sequence.chain, sequence.tokens, sequence.num_remembered, num_full)
            sequence.num_remembered = num_full

    def forget(self, sequence: Sequence) -> None:
        """Remove the KV of a sequence, which cannot be trusted, from the prefix cache."""
        self.pool.forget(sequence.held_pages)

    def rebook(self, sequence: Sequence, to: SequenceState) -> None:
        """Change the state of the sequence, and with it that of its pages in the pool."""
        owner = sequence.page_owner
        sequence.move(to)
        new_owner = sequence.page_owner
        assert owner is not None
        assert new_owner is not None
        self.pool.hand_over(sequence.held_pages, owner, new_owner)

    def give_up(self, sequence: Sequence) -> None:
        """Give back all pages of a sequence; full ones stay in the prefix cache."""
        owner = sequence.page_owner
        if owner is not None:
            self.pool.release(sequence.held_pages, owner)
        del sequence.pages[:]
        del sequence.state_pages[:]
        sequence.num_computed = sequence.num_remembered = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError unless these sequences own all pages that have an owner in the pool."""
        owned = []
        for sequence in sequences:
            owner = sequence.page_owner
            assert (owner is None) == (not sequence.pages), f"{sequence.key} {sequence.state}: {sequence.pages}"
            if owner is not None:
                owned.append((sequence.held_pages, owner))
                assert len(sequence.state_pages) == self._limits.state_pages
            assert sequence.num_computed <= len(sequence.pages) * self._limits.page_tokens
        self.pool.check_integrity(owned)
