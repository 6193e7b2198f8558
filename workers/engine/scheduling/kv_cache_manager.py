"""The pages of sequences: taken when one is admitted or reserved, extended when full, and given up at the end.

The state of a sequence determines the state of its pages in the pool; here, both change together.

Where layers have windows, a sequence holds of each page group a run of blocks:

    block      0  1  2  3  4  5  6  7  8  9
    no window  x  x  x  x  x  x  x  x  x  x     all pages, up to the last token known
    window     .  .  .  .  x  x  x  x  -  -     given back | seen by the next query, and what a step may write | later
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from slipstream.workers.engine.kv_cache.group_match import GroupMatch, match_full_groups, match_groups
from slipstream.workers.engine.kv_cache.page_pool import PagePool
from slipstream.workers.engine.kv_cache.page_states import PageState
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.plan.step_plan import StateCopy
from slipstream.workers.engine.scheduling.sequence import Sequence, SequenceState
from slipstream.workers.engine.scheduling.state_checkpoints import StateCheckpoints


class KvCacheManager:
    """Takes and gives back the pages of sequences. Where a method has `spare`, it leaves so many pages to others."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._most_blocks = limits.most_blocks
        num_groups = len(limits.windows) + limits.checkpoint_pages
        self.pool = PagePool(limits.num_pages, num_groups, num_groups - 1 if limits.has_states else 0)
        self._checkpoints = StateCheckpoints(limits, self.pool) if limits.has_states else None
        self.num_queried_tokens = 0  # looked up in the prefix cache when a sequence first took pages
        self.num_hit_tokens = 0

    def change_limits(self, limits: EngineLimits) -> None:
        """Changes the limits; the pages stay the same."""
        assert limits.windows == self._limits.windows
        assert limits.checkpoint_pages == self._limits.checkpoint_pages
        self._limits = limits
        if limits.has_states:
            self._checkpoints = StateCheckpoints(limits, self.pool)
        self._most_blocks = limits.most_blocks

    def take(self, sequence: Sequence, num_tokens: int, owner: PageState, spare: int) -> bool:
        """Pages for `num_tokens` tokens, from the prefix cache as far as it goes. At least one token is left to
        compute (or receive): the next token is sampled from the last one's hidden state, which is not cached. Nor are
        those that log-probabilities of the prompt come from. False, with nothing taken, if there are too few."""
        limits = self._limits
        next_position = _next_position(sequence, owner)
        checkpoint = None
        if self._checkpoints is not None and owner is PageState.ACTIVE:
            checkpoint = self._checkpoints.match(sequence)
            hit, num_computed = checkpoint.kv, checkpoint.num_blocks * limits.block_tokens
        else:
            is_computed = owner is PageState.ACTIVE
            hit = self._match(
                sequence, next_position, sequence.num_cacheable if is_computed else sequence.num_tokens - 1
            )
            num_computed = hit.num_blocks * limits.page_tokens
        position = max(num_computed, next_position)
        firsts = [limits.first_block(window, position) for window in limits.windows]
        ends = self._ends(sequence, num_tokens, position, owner)
        shared = [page for pages in hit.pages for page in pages]
        num_new = [end - first - len(of_hit) for first, of_hit, end in zip(firsts, hit.pages, ends, strict=True)]
        pages = self.pool.acquire(shared, sum(num_new) + limits.state_pages, owner, spare)
        if pages is None:
            return False
        tables, at = [], len(shared)
        for first, of_hit, num in zip(firsts, hit.pages, num_new, strict=True):
            tables.append(array("i", bytes(4 * first)) + array("i", of_hit) + pages[at : at + num])
            at += num
        sequence.pages, *more = tables
        sequence.more_pages, sequence.first_blocks = tuple(more), tuple(firsts)
        sequence.state_pages = pages[at:]
        sequence.num_computed = num_computed
        sequence.num_remembered = num_computed // limits.block_tokens
        if checkpoint is not None and self._checkpoints is not None:
            self._checkpoints.begin(sequence, checkpoint)
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
            self.num_queried_tokens += sequence.num_tokens
            self.num_hit_tokens += sequence.num_computed
        return True

    def grow(self, sequence: Sequence, num_tokens: int, spare: int = 0) -> bool:
        """Take pages for so many tokens in all. False, with nothing taken, if there are too few."""
        owner = sequence.page_owner
        assert owner is not None
        position = max(sequence.num_computed, _next_position(sequence, owner))
        ends = self._ends(sequence, num_tokens, position, owner)
        num_new = [max(0, end - len(table)) for end, table in zip(ends, sequence.tables, strict=True)]
        if not any(num_new):
            return True
        new = self.pool.acquire((), sum(num_new), owner, spare)
        if new is None:
            return False
        at = 0
        for table, num in zip(sequence.tables, num_new, strict=True):
            table.extend(new[at : at + num])
            at += num
        return True

    def lacks_pages(self, sequence: Sequence) -> bool:
        """Whether a running sequence has too few for what the next step may compute of it."""
        ends = self._ends(sequence, sequence.num_tokens, sequence.num_computed, PageState.ACTIVE)
        return any(len(table) < end for table, end in zip(sequence.tables, ends, strict=True))

    def give_back_unseen(self, sequence: Sequence, position: int | None = None) -> None:
        """Give back the pages that no query at `position` or later will see; without it, at what is computed next. Not
        while pages are being sent to where the sequence moves: they have to stay in place."""
        if sequence.num_sends:
            return
        owner = sequence.page_owner
        assert owner is not None
        position = sequence.num_computed if position is None else position
        firsts = [self._limits.first_block(window, position) for window in self._limits.windows]
        if all(first <= held_from for first, held_from in zip(firsts, sequence.first_blocks, strict=True)):
            return
        for table, first, held_from in zip(sequence.tables, firsts, sequence.first_blocks, strict=True):
            if first > held_from:
                self.pool.release(table[held_from:first], owner)
        sequence.first_blocks = tuple(map(max, firsts, sequence.first_blocks))

    def before_step(self, sequences: Iterable[Sequence]) -> None:
        """More of these sequences is computed in the next step: states are kept that are there to be kept."""
        if self._checkpoints is not None:
            for sequence in sequences:
                self._checkpoints.before_step(sequence)

    def num_resumable(self, sequence: Sequence) -> int:
        """Tokens with which a sequence could begin now if it were computed here. For models with states."""
        assert self._checkpoints is not None
        return self._checkpoints.match(sequence).num_blocks * self._limits.block_tokens

    def take_copies(self) -> tuple[StateCopy, ...]:
        """The copies of states to be made before the next step."""
        return () if self._checkpoints is None else self._checkpoints.take_copies()

    def remember(self, sequence: Sequence) -> None:
        """Put pages that have become full into the prefix cache; where there are states, this is done when one is
        kept."""
        if self._checkpoints is not None:
            return
        num_full = sequence.num_computed // self._limits.page_tokens
        if sequence.chain is not None and num_full > sequence.num_remembered:
            for group, table in enumerate(sequence.tables):
                first = max(sequence.num_remembered, sequence.first_blocks[group])
                self.pool.remember(table, sequence.chain, sequence.tokens, first, num_full, group)
            sequence.num_remembered = num_full

    def remember_received(self, sequence: Sequence, *, is_whole: bool) -> None:
        """Put full pages that have arrived into the prefix cache. Those of groups with a window come last, when the
        sequence `is_whole`; pages that its source had given back by then hold nothing."""
        if is_whole and self._limits.has_windows:
            self.give_back_unseen(sequence)
        chain, num_full = sequence.chain, sequence.num_computed // self._limits.page_tokens
        if chain is None or self._checkpoints is not None:
            return
        for group, window in enumerate(self._limits.windows):
            if window is None or is_whole:
                first = sequence.num_remembered if window is None else sequence.first_blocks[group]
                self.pool.remember(sequence.tables[group], chain, sequence.tokens, first, num_full, group)
        sequence.num_remembered = max(sequence.num_remembered, num_full)

    def forget(self, sequence: Sequence) -> None:
        """Remove the KV of a sequence, which cannot be trusted, from the prefix cache."""
        self.pool.forget(sequence.held_pages)
        if self._checkpoints is not None:
            self._checkpoints.forget(sequence)

    def rebook(self, sequence: Sequence, to: SequenceState) -> None:
        """Change the state of the sequence, and with it that of its pages in the pool."""
        owner = sequence.page_owner
        sequence.move(to)
        new_owner = sequence.page_owner
        assert owner is not None
        assert new_owner is not None
        self.pool.hand_over(sequence.held_pages, owner, new_owner)

    def retain(self, sequence: Sequence) -> None:
        """A sequence ends for good: what its request says of its pages in the prefix cache, which it still owns. Of
        layers with windows only those pages count that a request sees which goes on behind the prompt or later."""
        hint, chain, limits = sequence.retention, sequence.chain, self._limits
        if hint is None or chain is None:
            return
        cache, digests, pages = self.pool.cache, chain.digests[: sequence.num_remembered], []
        behind = min(sequence.num_prompt // limits.page_tokens, len(digests)) * limits.page_tokens
        if limits.state_block_tokens is None:
            for group, window in enumerate(limits.windows):
                pages += cache.pages_of(digests[limits.first_block(window, behind) :], group)
        if self._checkpoints is not None:
            pages += self._checkpoints.latest(digests)
        cache.order.hold(sequence.key[0], pages, hint)

    def give_up(self, sequence: Sequence) -> None:
        """Give back all pages of a sequence; full ones stay in the prefix cache."""
        owner = sequence.page_owner
        if owner is not None:
            for table, first in zip(sequence.tables, sequence.first_blocks, strict=True):
                self.pool.release(table[first:] if first else table, owner)
            self.pool.release(sequence.state_pages, owner)
            if self._checkpoints is not None:
                self._checkpoints.ended(sequence)
        sequence.stops.clear()
        del sequence.pages[:]
        del sequence.state_pages[:]
        sequence.more_pages = sequence.first_blocks = ()
        sequence.num_computed = sequence.num_remembered = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError unless these sequences own all pages that have an owner in the pool, and have those
        that a query may see."""
        limits, owned = self._limits, []
        for sequence in sequences:
            owner, held = sequence.page_owner, sequence.held_pages
            assert (owner is None) == (not held), f"{sequence.key} {sequence.state}: {held}"
            if owner is None:
                continue
            owned.append((held, owner))
            assert len(sequence.state_pages) == limits.state_pages
            if owner is PageState.DRAINING:
                continue
            position = max(sequence.num_computed, _next_position(sequence, owner))
            for window, table, first in zip(limits.windows, sequence.tables, sequence.first_blocks, strict=True):
                assert sequence.num_computed <= len(table) * limits.page_tokens
                assert first <= limits.first_block(window, position), f"{sequence.key} gave back what a query will see"
        self.pool.check_integrity(owned)
        if self._checkpoints is not None:
            self._checkpoints.check_integrity()

    def _match(self, sequence: Sequence, next_position: int, num_cacheable: int) -> GroupMatch:
        limits, chain = self._limits, sequence.chain
        if chain is None or limits.state_block_tokens is not None:
            return GroupMatch(0, tuple([] for _ in limits.windows))
        max_blocks = num_cacheable // limits.page_tokens
        cache, tokens = self.pool.cache, sequence.tokens
        if sequence.is_adopted:
            return match_full_groups(cache, limits, chain, tokens, max_blocks)
        return match_groups(cache, limits, chain, tokens, max_blocks, next_position)

    def _ends(self, sequence: Sequence, num_tokens: int, position: int, owner: PageState) -> list[int]:
        """By group, up to which block a sequence needs pages now for `num_tokens` tokens, the next of which is computed
        at `position`. Where a group has a window, those of later steps can wait: what they take is given back by then.
        Not where pages are sent: a prompt that is being sent cannot give way to others, so it must not have to wait for
        them."""
        limits = self._limits
        end = limits.blocks_for(num_tokens)
        if not limits.has_windows or owner is not PageState.ACTIVE or sequence.ticket is not None:
            return [end] * len(limits.windows)
        return [
            end if most is None else min(end, limits.first_block(window, position) + most)
            for window, most in zip(limits.windows, self._most_blocks, strict=True)
        ]


def _next_position(sequence: Sequence, owner: PageState) -> int:
    """Where the first query of a reservation will be, the KV before which is on its way; 0 for other sequences."""
    if owner is not PageState.RESERVED:
        return 0
    return sequence.num_tokens - sequence.is_adopted
