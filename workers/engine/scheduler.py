"""Who computes what in the next step, and who owns which pages meanwhile. Data in, data out: no clock, no device."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from slipstream.workers.engine.ledger import PageState
from slipstream.workers.engine.limits import EngineLimits
from slipstream.workers.engine.pages import PagePool
from slipstream.workers.engine.prefix_cache import PrefixCache
from slipstream.workers.engine.sequence import AttemptKey, Sequence, SequenceState

# Those that have a slot without being in the batch.
_RESERVED_STATES = (SequenceState.RESERVED, SequenceState.LANDED, SequenceState.STARTED, SequenceState.FROZEN)


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """`num_tokens` tokens of a sequence from `sequence.num_computed` on. `begins`: its first chunk since it was
    admitted. `samples`: they reach the last token known, so the next one can be sampled."""

    sequence: Sequence
    num_tokens: int
    begins: bool
    samples: bool


@dataclass(slots=True)
class ScheduledStep:
    """What to compute next. Each sequence that decodes computes its last token and samples the next one."""

    decoding: list[Sequence]
    chunks: list[ScheduledChunk] = field(default_factory=list)
    num_chunk_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.decoding or self.chunks)


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the beginning, in tokens where not said otherwise."""

    num_preemptions: int = 0  # sequences
    num_queried_tokens: int = 0  # looked up in the prefix cache when a sequence first took pages
    num_hit_tokens: int = 0


class Scheduler:
    """Continuous batching over a page pool.

    A step takes every running sequence that has one token to compute (decoding), then fills what is left of
    `max_step_tokens` with prefill chunks, then admits from the queue. Sequences are ordered by priority (lower first)
    and arrival.

    A sequence takes the pages for all tokens it knows when it is admitted, and one more whenever its output fills the
    last. If there is none, the last in order among the running gives up all its pages and waits for another turn: it
    is computed again, mostly from the prefix cache. Whoever is first in order is never preempted for another, so
    there is always one that gets on; and as every accepted sequence fits into the pool alone, it ends.

    Reservations (KV on its way here) count against slots and pages from the start and are taken only from what the
    queue does not need, so an accepted sequence is never starved by them.

    A sequence whose guide is still being compiled stands back, in the queue or in the batch; `look_again` when it is.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._pool = PagePool(limits.num_pages)
        self._sequences: dict[AttemptKey, Sequence] = {}
        self._waiting: list[Sequence] = []  # sorted by order
        self._running: list[Sequence] = []  # sorted by order
        self._num_reserved = 0
        self._starved: list[Sequence] = []  # running, but without a page for their next token
        self._unready: list[Sequence] = []  # running, but their guide is still being compiled
        self._is_stuck = False  # the last step had nothing to do and nothing has changed since
        self.counters = SchedulerCounters()

    def change_limits(self, limits: EngineLimits) -> None:
        """Works with other limits from now on, over the same pages."""
        assert not self._sequences
        assert (limits.num_pages, limits.page_tokens) == (self._limits.num_pages, self._limits.page_tokens)
        self._limits = limits

    # ---- what comes in

    def get(self, key: AttemptKey) -> Sequence | None:
        return self._sequences.get(key)

    def keys(self) -> list[AttemptKey]:
        return list(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its key must be new."""
        assert sequence.key not in self._sequences
        self._sequences[sequence.key] = sequence
        insort(self._waiting, sequence, key=_order)
        self._is_stuck = False

    def reserve(self, sequence: Sequence, num_room_tokens: int = 1) -> bool:
        """Take pages for all tokens of a new sequence and some more: one is what the router counts for it. False,
        with nothing taken, if slots or pages are short."""
        assert sequence.key not in self._sequences
        if self.num_free_slots < 1:
            return False
        room = min(sequence.num_tokens + num_room_tokens, self._limits.max_model_len)
        spare = self._num_waiting_pages() + self._growth_room()
        if not self._take_pages(sequence, room, PageState.RESERVED, spare):
            return False
        sequence.state = SequenceState.RESERVED
        self._sequences[sequence.key] = sequence
        self._num_reserved += 1
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages of a reservation for so many tokens in all. False, with nothing taken, if there are too few."""
        num_missing = self._limits.pages_for(min(num_tokens, self._limits.max_model_len)) - len(sequence.pages)
        if num_missing > 0:
            spare = self._num_waiting_pages() + self._growth_room()
            new = self._pool.acquire((), num_missing, PageState.RESERVED, spare)
            if new is None:
                return False
            sequence.pages.extend(new)
        return True

    def copied(self, sequence: Sequence) -> None:
        """Full pages of a reservation have landed; others are still to come."""
        sequence.num_computed = sequence.num_to_land
        self._remember(sequence)

    def land(self, sequence: Sequence) -> None:
        """The KV of all tokens that a reservation waited for is in its pages."""
        if sequence.is_adopted and sequence.state is SequenceState.RESERVED:
            sequence.move(SequenceState.LANDED)  # `start` will say how far the KV goes
            return
        sequence.num_computed = sequence.num_to_land
        self._remember(sequence)
        if sequence.state is SequenceState.STARTED:
            self._run(sequence)
        else:
            sequence.move(SequenceState.LANDED)

    def start(self, sequence: Sequence, token_ids: tuple[int, ...]) -> None:
        """The first tokens after those reserved for are known."""
        for token_id in token_ids:
            sequence.append(token_id)
        if sequence.is_adopted:
            sequence.num_to_land = sequence.num_tokens - 1
        if sequence.state is SequenceState.LANDED:
            if sequence.is_adopted:
                self.copied(sequence)
            self._run(sequence)
        else:
            sequence.move(SequenceState.STARTED)

    def convert(self, sequence: Sequence) -> None:
        """Compute a reserved sequence here after all. If its KV has landed already, all full pages of it are in the
        prefix cache: it queues as if it were new, because its last token has to be computed once more and that must
        not write into pages that others may share by now."""
        if sequence.state is SequenceState.RESERVED:
            self._run(sequence)
        else:
            self._requeue(sequence)

    def freeze(self, sequence: Sequence) -> None:
        """A running sequence stands still; slot and pages stay."""
        self._detach(sequence)
        self._num_reserved += 1
        self._rebook(sequence, SequenceState.FROZEN)

    def resume(self, sequence: Sequence) -> None:
        """A frozen sequence goes on."""
        self._run(sequence)

    def begin_send(self, sequence: Sequence) -> None:
        """A transfer reads the sequence's pages from now on: they stay where they are."""
        sequence.num_sends += 1

    def end_send(self, sequence: Sequence) -> None:
        """Nothing of that transfer touches the pages any more."""
        sequence.num_sends -= 1
        self._is_stuck = False  # it may give up its pages again

    def release(self, sequence: Sequence) -> None:
        """End a reservation, or a sequence whose pages were held or draining."""
        assert sequence.state not in (SequenceState.WAITING, SequenceState.RUNNING)
        self._detach(sequence)
        self._give_up_pages(sequence)
        self._end(sequence)

    def abort(self, sequence: Sequence, keep_pages: bool) -> bool:
        """End a sequence in any state. With `keep_pages`, or where they are being sent, its pages, if any, drain until
        `release`; returns whether there are such pages."""
        if sequence.state is SequenceState.DRAINING:
            return True
        self._detach(sequence)
        if (keep_pages or sequence.num_sends) and sequence.pages:
            self._rebook(sequence, SequenceState.DRAINING)
            return True
        self._give_up_pages(sequence)
        self._end(sequence)
        return False

    def look_again(self) -> None:
        """Something has changed that the scheduler does not know of: a guide is ready."""
        self._is_stuck = False

    # ---- a step

    def schedule(self) -> ScheduledStep:
        """What to compute next; empty if nothing can be. To be followed by `computed`."""
        max_tokens = self._limits.max_step_tokens
        self._secure_pages()
        decoding = [s for s in self._running if s.num_computed + 1 == len(s.tokens) and s.ticket is None]
        if self._unready:
            self._unready = [s for s in self._unready if s.state is SequenceState.RUNNING and not s.is_ready]
        if self._starved or self._unready:
            decoding = [s for s in decoding if s not in self._starved and s not in self._unready]
        step = ScheduledStep(decoding[:max_tokens])
        budget = max_tokens - len(step.decoding)
        if budget and len(step.decoding) < len(self._running):
            for sequence in self._running:
                if sequence in self._unready:
                    continue
                if budget and (sequence.num_uncomputed > 1 or sequence.ticket is not None):
                    budget -= self._schedule_chunk(step, sequence, budget, begins=False)
        while budget and (admitted := self._next_waiting()) is not None and self._admit(admitted):
            insort(self._running, admitted, key=_order)
            budget -= self._schedule_chunk(step, admitted, budget, begins=True)
        self._is_stuck = not step
        return step

    def computed(self, step: ScheduledStep) -> None:
        """The step's KV is in the sequences' pages. Pages that have become full go into the prefix cache."""
        page_tokens = self._limits.page_tokens
        for sequence in step.decoding:
            sequence.num_computed += 1
            if sequence.num_computed % page_tokens == 0:
                self._remember(sequence)
        for chunk in step.chunks:
            chunk.sequence.num_computed += chunk.num_tokens
            self._remember(chunk.sequence)

    def forget(self, sequence: Sequence) -> None:
        """The KV of a running sequence is not to be trusted: it leaves the prefix cache."""
        self._pool.forget(sequence.pages)

    def finish(self, sequence: Sequence) -> None:
        """A running sequence is done: its full pages become prefix cache. Where they are being sent they drain first,
        until `release`."""
        self._detach(sequence)
        if sequence.num_sends:
            self._rebook(sequence, SequenceState.DRAINING)
            return
        self._give_up_pages(sequence)
        self._end(sequence)

    def hold(self, sequence: Sequence) -> None:
        """A running sequence is done, but its pages stay as they are until `release`."""
        self._detach(sequence)
        self._rebook(sequence, SequenceState.HELD)

    # ---- what there is

    @property
    def prefix_cache(self) -> PrefixCache:
        return self._pool.cache

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting) and not self._is_stuck

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_free_slots(self) -> int:
        taken = len(self._running) + len(self._waiting) + self._num_reserved
        return max(0, self._limits.max_num_seqs - taken)

    @property
    def num_free_pages(self) -> int:
        """Free and evictable pages that no queued sequence is going to need and no running one will need soon: as
        many can be reserved now."""
        return max(0, self._pool.num_available - self._num_waiting_pages() - self._growth_room())

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that queued and running sequences have yet to compute before their next one is sampled."""
        return sum(s.num_uncomputed for s in self._waiting) + sum(s.num_uncomputed for s in self._running)

    def page_counts(self) -> dict[str, int]:
        return self._pool.counts()

    def check_integrity(self) -> None:
        """Raises AssertionError if sequences, queues and pages do not add up. Looks at everything: for tests
        and idle moments."""
        by_state = {state: [s for s in self._sequences.values() if s.state is state] for state in SequenceState}
        assert self._running == sorted(by_state[SequenceState.RUNNING], key=_order)
        assert self._waiting == sorted(by_state[SequenceState.WAITING], key=_order)
        assert self._num_reserved == sum(len(by_state[state]) for state in _RESERVED_STATES)
        assert len(self._running) + self._num_reserved <= self._limits.max_num_seqs
        owned = []
        for sequence in self._sequences.values():
            owner = sequence.page_owner
            assert (owner is None) == (not sequence.pages), f"{sequence.key} {sequence.state}: {sequence.pages}"
            if owner is not None:
                owned.append((sequence.pages, owner))
            assert sequence.num_computed <= len(sequence.pages) * self._limits.page_tokens
        self._pool.check_integrity(owned)

    # ---- inside

    def _schedule_chunk(self, step: ScheduledStep, sequence: Sequence, budget: int, *, begins: bool) -> int:
        """Append the next chunk of a sequence and return its length. A chunk that is not the last ends with a page,
        so that pages are complete (and sent) early, unless that would leave more than half the budget unused."""
        num_tokens = sequence.num_uncomputed
        if num_tokens > budget:
            over = (sequence.num_computed + budget) % self._limits.page_tokens
            num_tokens = budget - over if 2 * over <= budget else budget
        samples = num_tokens == sequence.num_uncomputed
        step.chunks.append(ScheduledChunk(sequence, num_tokens, begins, samples))
        step.num_chunk_tokens += num_tokens
        return num_tokens

    def _secure_pages(self) -> None:
        """Give each running sequence pages for all its tokens, first in order first; preempt from the end for them.
        Who finds nobody to preempt and cannot be preempted itself, because its pages are being sent, waits."""
        page_tokens = self._limits.page_tokens
        self._starved.clear()
        at = 0
        while at < len(self._running):
            sequence = self._running[at]
            if len(sequence.tokens) > len(sequence.pages) * page_tokens:
                num_missing = self._limits.pages_for(sequence.num_tokens) - len(sequence.pages)
                new = self._pool.acquire((), num_missing, PageState.ACTIVE)
                if new is None:
                    victim = self._victim(sequence)
                    if victim.is_preemptible:
                        self._preempt(victim)
                        continue  # with the same sequence, unless it was itself the victim
                    self._starved.append(sequence)
                else:
                    sequence.pages.extend(new)
            at += 1

    def _victim(self, needy: Sequence) -> Sequence:
        """The last in order that may be preempted; at the latest `needy` itself."""
        for sequence in reversed(self._running):
            if sequence.is_preemptible or sequence is needy:
                return sequence
        raise AssertionError("a sequence that needs pages is running")

    def _preempt(self, sequence: Sequence) -> None:
        self._requeue(sequence)
        self.counters.num_preemptions += 1

    def _requeue(self, sequence: Sequence) -> None:
        self._detach(sequence)
        self._give_up_pages(sequence)
        sequence.move(SequenceState.WAITING)
        insort(self._waiting, sequence, key=_order)

    def _next_waiting(self) -> Sequence | None:
        return next((sequence for sequence in self._waiting if sequence.is_ready), None)

    def _admit(self, sequence: Sequence) -> bool:
        """From the queue into the batch."""
        if len(self._running) + self._num_reserved >= self._limits.max_num_seqs:
            return False
        if not self._take_pages(sequence, sequence.num_tokens, PageState.ACTIVE, self._growth_room()):
            return False
        _remove(self._waiting, sequence)
        sequence.move(SequenceState.RUNNING)
        return True

    def _growth_room(self) -> int:
        """Pages to leave for running sequences that will soon need one, so that taking in another does not at once
        lead to a preemption. At most 1/64 of the pool; none is left where nothing runs, so the first always fits."""
        return min(len(self._running), 1 + self._limits.num_pages // 64)

    def _take_pages(self, sequence: Sequence, num_tokens: int, owner: PageState, spare: int) -> bool:
        """Pages for `num_tokens` tokens, from the prefix cache as far as it goes. At least one token is left to
        compute (or receive): the next token is sampled from the last one's hidden state, which is not cached."""
        max_shared = (sequence.num_tokens - 1) // self._limits.page_tokens if sequence.chain else 0
        shared = self._pool.match(sequence.chain, sequence.tokens, max_shared) if sequence.chain else []
        pages = self._pool.acquire(shared, self._limits.pages_for(num_tokens) - len(shared), owner, spare)
        if pages is None:
            return False
        sequence.pages = pages
        sequence.num_computed = len(shared) * self._limits.page_tokens
        sequence.num_remembered = len(shared)
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
            self.counters.num_queried_tokens += sequence.num_tokens
            self.counters.num_hit_tokens += sequence.num_computed
        return True

    def _run(self, sequence: Sequence) -> None:
        """From a reserved state to running, in the slot that it had."""
        self._num_reserved -= 1
        self._rebook(sequence, SequenceState.RUNNING)
        insort(self._running, sequence, key=_order)
        if not sequence.is_ready:
            self._unready.append(sequence)
        self._is_stuck = False

    def _remember(self, sequence: Sequence) -> None:
        """Put pages that have become full into the prefix cache."""
        num_full = sequence.num_computed // self._limits.page_tokens
        if sequence.chain is not None and num_full > sequence.num_remembered:
            self._pool.remember(sequence.pages, sequence.chain, sequence.tokens, sequence.num_remembered, num_full)
            sequence.num_remembered = num_full

    def _detach(self, sequence: Sequence) -> None:
        """Take a sequence out of queue, batch or reservations. What it leaves may let others go on."""
        if sequence.state is SequenceState.WAITING:
            _remove(self._waiting, sequence)
        elif sequence.state is SequenceState.RUNNING:
            _remove(self._running, sequence)
        elif sequence.state in _RESERVED_STATES:
            self._num_reserved -= 1
        self._is_stuck = False

    def _rebook(self, sequence: Sequence, to: SequenceState) -> None:
        """Change the state and with it what the pages are booked under."""
        owner = sequence.page_owner
        sequence.move(to)
        new_owner = sequence.page_owner
        assert owner is not None
        assert new_owner is not None
        self._pool.hand_over(sequence.pages, owner, new_owner)

    def _give_up_pages(self, sequence: Sequence) -> None:
        owner = sequence.page_owner
        if owner is not None:
            self._pool.release(sequence.pages, owner)
        del sequence.pages[:]
        sequence.num_computed = sequence.num_remembered = 0

    def _end(self, sequence: Sequence) -> None:
        sequence.move(SequenceState.FINISHED)
        del self._sequences[sequence.key]

    def _num_waiting_pages(self) -> int:
        return sum(self._limits.pages_for(sequence.num_tokens) for sequence in self._waiting)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _remove(ordered: list[Sequence], sequence: Sequence) -> None:
    at = bisect_left(ordered, sequence.order, key=_order)
    assert ordered[at] is sequence
    del ordered[at]
