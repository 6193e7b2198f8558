"""Which workers hold the KV of which prefixes, as far as the router knows.

The knowledge comes from two sources. Workers report which pages their prefix caches store and remove
(`BlocksChanged`). And a request will produce its blocks where it was placed: until that worker has reported them, and
for `EXPECTED_S` at most, they count as *expected* there. Without that, a burst of requests with a common prefix would
scatter over all workers.

Where a model has recurrent states, a worker reports the blocks behind which it keeps a state. One of these stands for
all blocks before it, and others are of no use.

An error here costs a worse placement, never a wrong answer, because workers look into their caches themselves. Sans-IO.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import filterfalse, islice

from slipstream.router.placement.prefix.block_map import BlockMap
from slipstream.router.placement.prefix.holder import BlockEventError, Holder
from slipstream.router.protocol.block_hash import BlockChain, KnownSegments, model_key, root_digest, unpack_block_ids
from slipstream.router.protocol.messages import BlocksChanged, Hello, Role
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.request_state import RequestState
from slipstream.router.status.prefix_status import PrefixIndexStatus

# How long a block counts as expected. A worker reports a page as soon as it is computed, so this has to outlast the
# queue of a busy worker. A block that takes longer than this should not attract more requests of the same kind.
EXPECTED_S = 10.0
MAX_PLACEMENTS_REMEMBERED = 65_536  # within EXPECTED_S; if there are more, the oldest expire early
MAX_ENTRIES = 16_000_000  # blocks times their holders, about 110 bytes each
# How many entries of lost workers are removed per event: a worker has tens of thousands, too many to remove at once.
SWEPT_AT_ONCE = 256


# Returns the names of a request's pages, for the page size and the model of the worker with this Hello.
NamePages = Callable[[RequestState, Hello], BlockChain]


class PrefixIndex:
    """Knows the blocks of the workers that were added. `max_entries` bounds its memory: once that is reached, it learns
    nothing more until something is removed. `name_pages` is for callers without tokens, such as the simulator, which
    name pages in another way."""

    def __init__(self, max_entries: int = MAX_ENTRIES, name_pages: NamePages | None = None) -> None:
        self._max_entries = max_entries
        self._name_pages = name_pages or partial(hash_pages, known=KnownSegments())
        self._map = BlockMap()
        self._holders: dict[WorkerState, Holder] = {}
        self._by_bit: dict[int, Holder] = {}
        self._role_masks: dict[Role, int] = {"prefill": 0, "decode": 0}
        self._state_mask = 0  # of the workers that keep states
        self._lost: list[Holder] = []  # their entries no longer count, and are removed bit by bit
        self._placements: deque[tuple[float, Holder, list[int]]] = deque()  # expected blocks, soonest to expire first
        self._num_entries = 0  # blocks times their holders
        self._chains: dict[str, BlockChain] = {}  # the blocks of prompt and output, by request id
        # The last result of `_hits`, and what it was for: the chain, its number of tokens and the version of the map.
        self._latest: tuple[BlockChain, int, int, list[tuple[int, int]]] | None = None
        self._status = PrefixIndexStatus()

    def add(self, worker: WorkerState) -> None:
        """A worker has joined, of which nothing is known yet. One without a prefix cache is not added."""
        if not worker.hello.prefix_caching:
            return
        taken = self._by_bit.keys() | {holder.bit for holder in self._lost}
        holder = Holder(worker, next(1 << number for number in range(len(taken) + 1) if 1 << number not in taken))
        self._holders[worker] = self._by_bit[holder.bit] = holder
        self._role_masks[worker.hello.role] |= holder.bit
        if worker.hello.keeps_states:
            self._state_mask |= holder.bit

    def remove(self, worker: WorkerState) -> None:
        """A worker was lost, and with it all it held. Unknown workers are ignored."""
        holder = self._holders.pop(worker, None)
        if holder is None:
            return
        holder.held.update(holder.expected)
        holder.expected.clear()  # a placement may still point here
        del self._by_bit[holder.bit]
        self._role_masks[worker.hello.role] &= ~holder.bit
        self._state_mask &= ~holder.bit
        self._lost.append(holder)
        self._sweep()

    def apply(self, worker: WorkerState, message: BlocksChanged) -> bool:
        """Applies a worker's report. Returns whether the router has to ask for a snapshot, because a message is
        missing.

        Raises BlockEventError if the report cannot be true; the worker should then be disconnected.
        """
        holder = self._holders.get(worker)
        if holder is None:
            raise BlockEventError("a worker without prefix caching reported blocks")
        if message.is_snapshot and message.removed:
            raise BlockEventError("BlocksChanged: a snapshot removes blocks")
        try:
            stored, removed = unpack_block_ids(message.stored), unpack_block_ids(message.removed)
        except ValueError as error:
            raise BlockEventError("BlocksChanged: block ids of 8 bytes each were expected") from error
        num_pages = worker.hello.num_pages
        if len(stored) > num_pages:
            raise BlockEventError(f"BlocksChanged.stored: {len(stored)} blocks in {num_pages} pages")
        status = self._status
        is_missing = holder.follow(message.seq, message.is_snapshot)
        status.num_messages += 1
        status.num_gaps += is_missing
        status.num_snapshots += message.is_snapshot
        status.num_stored += len(stored)
        status.num_removed += len(removed)
        if holder.awaits_snapshot:
            return is_missing  # the old view stays until the snapshot replaces it
        self._sweep()
        self._remove(holder, holder.held.copy() if message.is_snapshot else holder.held.intersection(removed))
        self._store(holder, stored)
        if len(holder.held) > num_pages:
            raise BlockEventError(f"BlocksChanged: {len(holder.held)} blocks in {num_pages} pages")
        return False

    def expect(self, worker: WorkerState, state: RequestState, now: float, *, is_computed: bool = True) -> None:
        """A request was placed so that the worker will have the KV of all its tokens. Where it `is_computed`, a worker
        that keeps states will have the one behind the last full block before the last token."""
        holder = self._holders.get(worker)
        if holder is None:
            return
        held, expected = holder.held, holder.expected
        self._sweep()
        ids = self._chain(state, state.num_tokens).ids
        if worker.hello.keeps_states:
            end = (state.num_tokens - 1) // worker.hello.cached_block_tokens if is_computed else 0
            ids = ids[max(end - 1, 0) : end]
        # What leads is held or expected, and what is expected has to be found among few.
        at = 0 if worker.hello.keeps_states else self.cached_tokens(worker, state) // worker.hello.cached_block_tokens
        unheld = [*filter(expected.__contains__, ids[:at]), *filterfalse(held.__contains__, islice(ids, at, None))]
        room = max(min(self._max_entries - self._num_entries, worker.hello.num_pages - len(expected)), 0)
        new = unheld[:room]
        if not new:
            return
        num_before, until = len(expected), now + EXPECTED_S
        self._map.add(new, holder.bit)
        expected.update((block, max(until, expected.get(block, until))) for block in new)
        self._num_entries += len(expected) - num_before
        self._placements.append((until, holder, new))
        if len(self._placements) > MAX_PLACEMENTS_REMEMBERED:
            self._expire_first()

    def give_up(self, worker: WorkerState, state: RequestState, placed_s: float) -> None:
        """The worker will not compute what was expected of a request placed at `placed_s`, which was cancelled or has
        to go elsewhere. Blocks that a later request will compute as well are still expected."""
        holder, chain = self._holders.get(worker), self._chains.get(state.request_id)
        if holder is None or chain is None:
            return
        until, expected = placed_s + EXPECTED_S, holder.expected
        self._stop_expecting(holder, [block for block in chain.ids if expected.get(block) == until])

    def forget(self, request_id: str) -> None:
        """The request has ended, or gets other blocks because its version has changed."""
        self._chains.pop(request_id, None)

    def expire(self, now: float) -> None:
        """Drops the blocks that have been expected for too long. To be called before lookups; costs next to nothing."""
        while self._placements and self._placements[0][0] <= now:
            self._expire_first()

    def observe(self, predicted_tokens: int, found_tokens: int) -> None:
        """Notes, when a worker has begun a prefill, how many tokens were predicted to be cached there and how many
        were."""
        status = self._status
        status.predicted_tokens += predicted_tokens
        status.found_tokens += found_tokens
        status.confirmed_tokens += min(predicted_tokens, found_tokens)

    def cached_tokens(self, worker: WorkerState, state: RequestState) -> int:
        """How many leading tokens, of the request's prompt and its output so far, need not be computed at the
        worker."""
        holder = self._holders.get(worker)
        if holder is None:
            return 0
        bit = holder.bit
        for num_blocks, mask in self._hits(state):
            if mask & bit:
                return num_blocks * worker.hello.cached_block_tokens
        return 0

    def best(self, state: RequestState, role: Role, limit: int) -> list[tuple[WorkerState, int]]:
        """At most `limit` workers of the role that have some of the request's tokens cached, with the number of tokens,
        most tokens first. Draining workers are left out."""
        found: list[tuple[WorkerState, int]] = []
        role_mask = self._role_masks[role]
        for num_blocks, mask in self._hits(state):
            mask &= role_mask
            while mask:
                bit = mask & -mask
                mask ^= bit
                worker = self._by_bit[bit].worker
                if not worker.draining:
                    found.append((worker, num_blocks * worker.hello.cached_block_tokens))
                    if len(found) >= limit:
                        return found
        return found

    def held_tokens(self, worker: WorkerState, state: RequestState) -> int:
        """How many of `cached_tokens` the worker holds already. Blocks that are only expected are of no use to a
        prefill that begins before they exist. Caches evict the ends of prefixes first, so bisection finds the
        boundary; not where states are kept, which end a prefix each."""
        holder, block_tokens = self._holders.get(worker), worker.hello.cached_block_tokens
        most = self.cached_tokens(worker, state) // block_tokens
        if holder is None or not most:
            return 0
        ids, held = self._chain(state, state.num_tokens).ids, holder.held
        if ids[most - 1] in held:
            return most * block_tokens
        if worker.hello.keeps_states:
            return next((at for at in range(most, 0, -1) if ids[at - 1] in held), 0) * block_tokens
        return bisect_left(range(most), True, key=lambda at: ids[at] not in held) * block_tokens

    def blocks_of(self, state: RequestState) -> Sequence[int]:
        """Ids of the full blocks of the request's prompt and its output so far; none where no worker caches any."""
        return self._chain(state, state.num_tokens).ids if self._holders else ()

    @property
    def status(self) -> PrefixIndexStatus:
        """A copy of the counts."""
        num_expected = sum(len(holder.expected) for holder in self._holders.values())
        return replace(
            self._status, num_blocks=len(self._map), num_entries=self._num_entries, num_expected=num_expected
        )

    def held_blocks(self, worker: WorkerState) -> frozenset[int]:
        """Ids of the blocks that the worker has reported to hold."""
        holder = self._holders.get(worker)
        return frozenset(holder.held) if holder is not None else frozenset()

    def num_held(self, worker: WorkerState) -> int:
        """How many blocks the worker has reported to hold."""
        holder = self._holders.get(worker)
        return len(holder.held) if holder is not None else 0

    def check_integrity(self) -> None:
        """Raises AssertionError if the two views of the held blocks differ. Slow, as it looks at everything; for
        tests."""
        for worker, holder in self._holders.items():
            assert self._by_bit[holder.bit] is holder, worker.name
            assert self._role_masks[worker.hello.role] & holder.bit, worker.name
            assert not holder.held & holder.expected.keys(), f"{worker.name} holds what is expected of it"
            assert len(holder.held) <= worker.hello.num_pages, worker.name
        all_holders = (*self._holders.values(), *self._lost)
        self._map.check_integrity((holder.bit, (*holder.held, *holder.expected)) for holder in all_holders)
        assert sum(holder.num_entries for holder in all_holders) == self._num_entries <= self._max_entries
        assert len({holder.bit for holder in all_holders}) == len(all_holders)
        assert len(self._by_bit) == len(self._holders)
        assert sum(mask.bit_count() for mask in self._role_masks.values()) == len(self._holders)

    def _chain(self, state: RequestState, num_tokens: int) -> BlockChain:
        """The request's blocks, up to the last full page of its present `num_tokens`."""
        hello = next(iter(self._holders)).hello  # all have the same model name and page size
        chain = self._chains.get(state.request_id)
        if chain is None or chain.page_tokens != hello.cached_block_tokens:
            chain = self._chains[state.request_id] = self._name_pages(state, hello)
        if len(chain.ids) != num_tokens // hello.cached_block_tokens:
            chain.extend(state.prompt_ids + state.output.packed_ids)
        return chain

    def _hits(self, state: RequestState) -> list[tuple[int, int]]:
        """(number of leading blocks, workers that have exactly so many of them), most first."""
        if not self._map or not self._holders or not state.is_scored:  # what is scored is computed
            return []
        num_tokens, latest = state.num_tokens, self._latest
        if (
            latest is not None
            and latest[0] is self._chains.get(state.request_id)
            and latest[1:3] == (num_tokens, self._map.version)
        ):
            return latest[3]
        chain = self._chain(state, num_tokens)
        # The last token is always computed, because the next one is sampled from its scores.
        num_usable = (num_tokens - 1) // chain.page_tokens
        connected = self._role_masks["prefill"] | self._role_masks["decode"]
        hits = self._map.hits(chain.ids, num_usable, connected & ~self._state_mask)
        if self._state_mask:
            hits += self._map.last_hits(chain.ids, num_usable, self._state_mask)
            hits.sort(key=lambda hit: -hit[0])
        self._latest = chain, num_tokens, self._map.version, hits
        return hits

    def _store(self, holder: Holder, blocks: Sequence[int]) -> None:
        """Adds blocks that the holder has reported, as far as there is room."""
        held, expected = holder.held, holder.expected
        come = expected.keys() & blocks
        for block in come:
            del expected[block]
        held.update(come)
        if len(come) == len(blocks):  # as nearly always
            return
        unforeseen = [block for block in blocks if block not in held]
        if unforeseen:
            new = unforeseen[: max(self._max_entries - self._num_entries, 0)]
            self._status.num_dropped += len(unforeseen) - len(new)
            num_before = len(held)
            held.update(new)
            self._map.add(new, holder.bit)
            self._num_entries += len(held) - num_before

    def _remove(self, holder: Holder, blocks: set[int]) -> None:
        """Removes blocks that the holder held."""
        self._map.remove(blocks, holder.bit)
        holder.held -= blocks
        self._num_entries -= len(blocks)

    def _sweep(self) -> None:
        """Removes some of the blocks of lost workers."""
        if not self._lost:
            return
        holder = self._lost[-1]
        self._remove(holder, {holder.held.pop() for _ in range(min(SWEPT_AT_ONCE, len(holder.held)))})
        if not holder.held:
            self._lost.pop()

    def _expire_first(self) -> None:
        until, holder, blocks = self._placements.popleft()
        expected = holder.expected
        self._stop_expecting(holder, [block for block in blocks if expected.get(block) == until])

    def _stop_expecting(self, holder: Holder, blocks: list[int]) -> None:
        if blocks:
            for block in blocks:
                del holder.expected[block]
            self._map.remove(blocks, holder.bit)
            self._num_entries -= len(blocks)


def hash_pages(state: RequestState, hello: Hello, known: KnownSegments | None = None) -> BlockChain:
    """The chain of a request's blocks, none of them hashed yet, as the workers' prefix caches name them."""
    root = root_digest(model_key(hello.model, state.version), state.request.cache_salt)
    return BlockChain(root, hello.cached_block_tokens, known)
