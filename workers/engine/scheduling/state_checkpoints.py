"""Copies of the states of sequences, kept in the prefix cache: without the state behind it, a prefix is of no use.

A sequence's state is that after all tokens computed so far, so it can only be copied while it stands at the end of a
block. Chunks of a prompt end there (`Sequence.stops`); sequences that decode pass there:

    block          0  1  2  3  4  5  6 | 7  8        a prompt of 7 full blocks, then its answer
    pages of KV    x  x  x  x  x  x  x   x  -        cached as far as there is a state behind them
    states kept          x           x   x           every few blocks; the last full block; the last one of the answer

A kept state lies in pages of its own, in page groups behind those of keys and values: an entry of the cache like any
other, without an owner, that is evicted when it is the oldest. A state is never younger than the KV before it, so it is
evicted first, and what is left of its KV next:

    oldest   state after 6 | block 6 | ... | state after 2 | block 2 | 1 | 0   latest used

Copies are made at the beginning of a step, in the order in which they were asked for. So the pages of a kept state may
be given to another owner in the same step that still reads them.

Which states are kept: see `_stops`. The idea that a prefix which two prompts have been seen to share is worth a state
is that of Marconi (Pan et al., MLSys 2025).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from slipstream.workers.engine.kv_cache.group_match import GroupMatch, match_checkpoint
from slipstream.workers.engine.kv_cache.page_pool import PagePool
from slipstream.workers.engine.kv_cache.page_states import PageState
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.plan.step_plan import StateCopy
from slipstream.workers.engine.scheduling.sequence import Sequence

MIN_SPARSE_TOKENS = 1024  # between two states of a prompt, apart from those at its end and where prompts part
MAX_SPARSE = 8  # of a prompt
LATEST_STATES = 2  # of an ended sequence that are worth keeping
KV_PER_STATE = 2  # they are so far apart that a state takes at most 1 / so much of the pages of the KV between them


@dataclass(frozen=True, slots=True)
class CheckpointHit:
    """A prefix of `num_blocks` blocks with the state behind it. `kv` are its pages of keys and values, none where only
    states are stored. `num_shared` blocks, as many or more, were computed for another prompt, too."""

    num_blocks: int
    kv: GroupMatch
    state: array[int]
    num_shared: int


class StateCheckpoints:
    """The states that are kept in a pool's prefix cache. `take_copies` hands out what has to be copied by then."""

    def __init__(self, limits: EngineLimits, pool: PagePool) -> None:
        self._limits = limits
        self._pool = pool
        self._copies: list[StateCopy] = []
        first = len(limits.windows)
        self._groups = range(first, first + limits.checkpoint_pages)

    def take_copies(self) -> tuple[StateCopy, ...]:
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def match(self, sequence: Sequence) -> CheckpointHit:
        """The longest prefix that the sequence can go on from. At least one token is left to compute."""
        limits, chain = self._limits, sequence.chain
        if chain is None:
            return CheckpointHit(0, GroupMatch(0, tuple([] for _ in limits.windows)), array("i"), 0)
        max_blocks = sequence.num_cacheable // limits.block_tokens
        kv, state, num_shared = match_checkpoint(
            self._pool.cache, limits, chain, sequence.tokens, max_blocks, self._groups
        )
        num_blocks = kv.num_blocks
        if limits.state_block_tokens is not None:
            kv = GroupMatch(0, kv.pages)
        return CheckpointHit(num_blocks, kv, array("i", state), num_shared)

    def begin(self, sequence: Sequence, hit: CheckpointHit) -> None:
        """A sequence that runs has taken its pages, and goes on from a hit."""
        sequence.stops = self._stops(sequence, hit)
        sequence.output_checkpoint = None
        if not hit.num_blocks:
            return
        for page in reversed(hit.state):
            self._pool.cache.touch(page)
        self._copies.append(StateCopy(hit.state, self._own(sequence)))

    def before_step(self, sequence: Sequence) -> None:
        """Keep the state of a sequence, of which more is computed in the next step, if it is one to be kept."""
        num_computed = sequence.num_computed
        if sequence.stops:
            if sequence.stops[-1] == num_computed:
                sequence.stops.pop()
                self._keep(sequence)
            return
        num_blocks, over = divmod(num_computed, self._limits.block_tokens)
        if over or sequence.num_uncomputed > 1 or not sequence.num_output or sequence.chain is None:
            return
        if sequence.output_checkpoint is not None:
            self._drop(sequence, sequence.output_checkpoint)
        sequence.output_checkpoint = num_blocks if self._keep(sequence) else None

    def latest(self, digests: list[bytes]) -> list[int]:
        """The pages of the last states kept at these blocks: where the next turn of a chat goes on, be it behind the
        answer or, if the template leaves out a part of that, behind the prompt."""
        cache, pages = self._pool.cache, []
        for digest in reversed(digests):
            if cache.page_of(digest, self._groups[-1]) is not None:
                for group in self._groups:
                    pages += cache.pages_of((digest,), group)
                if len(pages) >= LATEST_STATES * len(self._groups):
                    break
        return pages

    def ended(self, sequence: Sequence) -> None:
        """A sequence has given back its pages: what it leaves in the cache is evicted from its end on."""
        chain, cache = sequence.chain, self._pool.cache
        if chain is None:
            return
        for digest in reversed(chain.digests[: sequence.num_remembered]):
            has_state = cache.page_of(digest, self._groups[-1]) is not None
            for group in reversed(range(self._groups.stop if has_state else self._groups.start)):
                page = cache.page_of(digest, group)
                if page is not None:
                    cache.touch(page)

    def forget(self, sequence: Sequence) -> None:
        """Remove the states of a sequence, which cannot be trusted."""
        for num_blocks in range(1, sequence.num_remembered + 1):
            self._drop(sequence, num_blocks)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every kept state has all its pages, none of which is owned."""
        cache = self._pool.cache
        for digest in cache.digests():
            for group in self._groups:
                page = cache.page_of(digest, group)
                assert page is not None, "a part of a state is missing"
                assert self._pool.is_idle(page), f"page {page} of a kept state is owned"

    def _stops(self, sequence: Sequence, hit: CheckpointHit) -> list[int]:
        """Where chunks of the prompt end so that the state can be kept, the last place first: behind the last full
        block, where the next turn of a chat goes on; where this prompt parts from another one; and every few blocks in
        long prompts. They are multiples of a power of two, so that long prompts of unlike lengths have the same."""
        limits, chain = self._limits, sequence.chain
        if chain is None:
            return []
        block_tokens, num_tokens = limits.block_tokens, sequence.num_tokens
        last = (num_tokens - 1) // block_tokens
        apart = max(MIN_SPARSE_TOKENS // block_tokens, KV_PER_STATE * limits.state_pages, last // MAX_SPARSE, 1)
        apart = 1 << (apart - 1).bit_length()
        blocks = {hit.num_shared, last, *range(apart, last, apart)}
        return [block * block_tokens for block in sorted(blocks, reverse=True) if block > hit.num_blocks]

    def _keep(self, sequence: Sequence) -> bool:
        """Copy the state into pages of the cache, and put the KV before it into the cache. False if it is there
        already, or if too few pages are free or evictable."""
        limits, pool, chain, tokens = self._limits, self._pool, sequence.chain, sequence.tokens
        assert chain is not None
        num_blocks = sequence.num_computed // limits.block_tokens
        at = num_blocks - 1
        chain.extend(tokens, num_blocks)
        known = pool.cache.page_of(chain.digests[at], self._groups[-1]) is not None
        if not known:
            self._drop(sequence, num_blocks)  # what is left of an evicted one
        pages = None if known else pool.acquire((), len(self._groups), PageState.ACTIVE)
        if pages is not None:
            if limits.state_pages:
                for group, table in enumerate(sequence.tables):
                    pool.remember_instead(table, chain, tokens, sequence.first_blocks[group], num_blocks, group)
            for group, page in zip(self._groups, pages, strict=True):
                pool.remember({at: page}, chain, tokens, at, num_blocks, group)
            pool.release(pages, PageState.ACTIVE)
            self._copies.append(StateCopy(self._own(sequence), pages))
        if known or pages is not None:
            sequence.num_remembered = num_blocks
        return pages is not None

    def _drop(self, sequence: Sequence, num_blocks: int) -> None:
        chain = sequence.chain
        if chain is None:
            return
        for group in self._groups:
            page = self._pool.cache.page_of(chain.digests[num_blocks - 1], group)
            if page is not None:
                self._pool.drop(page)

    def _own(self, sequence: Sequence) -> array[int]:
        return sequence.state_pages[:] if self._limits.state_pages else sequence.pages[:1]
