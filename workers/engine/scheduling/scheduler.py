"""Decides which sequences compute what in the next step, and which pages they own. Pure: no clock and no device."""

from __future__ import annotations

from slipstream.workers.engine.kv_cache.page_states import PageState
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.scheduling.kv_cache_manager import KvCacheManager
from slipstream.workers.engine.scheduling.outstanding_pages import OutstandingPages
from slipstream.workers.engine.scheduling.promised_pages import PromisedPages
from slipstream.workers.engine.scheduling.scheduled_step import ScheduledStep
from slipstream.workers.engine.scheduling.sequence import Sequence, SequenceState
from slipstream.workers.engine.scheduling.sequence_table import SequenceTable
from slipstream.workers.engine.scheduling.step_sizes import StepSizes
from slipstream.workers.interface.engine import AttemptKey


class Scheduler:
    """Continuous batching over a page pool.

    A step takes every running sequence that has one token to compute (decoding), then fills what is left of
    `max_step_tokens` with prefill chunks, then admits from the queue. Sequences are ordered by priority (lower first)
    and arrival.

    When a sequence is admitted, it takes pages for all its known tokens, and later one more whenever its output fills
    the last. If there is none, the running sequence that is last in order gives up all its pages and queues again; it
    will be recomputed, mostly from the prefix cache. The first sequence in order is never preempted for another one, so
    there is always one that makes progress; and as every accepted sequence fits into the pool alone, it will finish.
    With a limit on the pool's pages, a sequence that does not fit below it alone waits for a higher one:
    `num_wanted_pages` asks for that.

    Where `limits.reserves_output`, a sequence is only admitted, reserved for or adopted if there are pages for the most
    tokens that it may come to have. It still takes them one by one; what it has not taken is promised to it, and until
    then may hold cached prefixes. So none is preempted, and a limit on the pool withholds no promised page.

    Reservations (for KV on its way here) count against slots and pages from the start, and are made only from what the
    queue does not need, so they never starve an accepted sequence.

    A sequence that needs a grammar that is still being compiled stands back, in the queue or in the batch, until
    `look_again`.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.sizes = StepSizes(limits)
        self.pages = KvCacheManager(limits)
        self._table = SequenceTable()
        self._starved: list[Sequence] = []  # running, but without a page for their next token
        self._unready: list[Sequence] = []  # running, but their grammar is still being compiled
        self._promised = PromisedPages(limits, self.pages.pool, self._table.by_key)
        self._outstanding = OutstandingPages(limits, self._table, self._promised)
        self._is_stuck = False  # the last step had nothing to do and nothing has changed since
        self.num_preemptions = 0  # of sequences, since the beginning

    def change_limits(self, limits: EngineLimits) -> None:
        """Changes the limits; the pages stay the same."""
        assert not self._table.by_key
        assert (limits.num_pages, limits.page_tokens) == (self._limits.num_pages, self._limits.page_tokens)
        self._limits = limits
        self.pages.change_limits(limits)
        self._promised.change_limits(limits)
        self._outstanding.change_limits(limits)
        self.sizes.change_limits(limits)

    def get(self, key: AttemptKey) -> Sequence | None:
        return self._table.by_key.get(key)

    def keys(self) -> list[AttemptKey]:
        return list(self._table.by_key)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its key must be new."""
        self._table.add(sequence)
        self._is_stuck = False

    def reserve(self, sequence: Sequence, num_room_tokens: int = 1) -> bool:
        """Take pages for all tokens of a new sequence and some more: one is what the router counts for it. False,
        with nothing taken, if slots or pages are short."""
        if self.num_free_slots < 1:
            return False
        room = min(sequence.num_tokens + num_room_tokens, sequence.max_tokens)
        if not self._take(sequence, room, PageState.RESERVED, self._outstanding.of_queue):
            return False
        sequence.state = SequenceState.RESERVED
        self._table.add(sequence)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages of a reservation for so many tokens in all. False, with nothing taken, if there are too few."""
        spare = 0 if self._limits.reserves_output else self._outstanding.of_queue + self._outstanding.growth_room
        return self.pages.grow(sequence, min(num_tokens, sequence.max_tokens), spare)

    def skip_to(self, sequence: Sequence, position: int) -> None:
        """The first query of a reservation will be at `position` or later."""
        self.pages.give_back_unseen(sequence, position)
        self._promised.withhold()

    def copied(self, sequence: Sequence) -> None:
        """Full pages of a reservation have landed; others are still to come."""
        sequence.num_computed = sequence.num_to_land
        self.pages.remember_received(sequence, is_whole=False)

    def land(self, sequence: Sequence) -> None:
        """The KV of all tokens that a reservation waited for is in its pages."""
        if sequence.is_adopted and sequence.state is SequenceState.RESERVED:
            sequence.move(SequenceState.LANDED)  # `start` will say how far the KV goes
            return
        self._received(sequence)
        if sequence.state is SequenceState.STARTED:
            self._run(sequence)
        else:
            sequence.move(SequenceState.LANDED)

    def start(self, sequence: Sequence, token_ids: tuple[int, ...]) -> None:
        """The first tokens after those reserved for are known."""
        for token_id in token_ids:
            sequence.append(token_id)
        sequence.num_scored = sequence.num_to_score  # by the worker that computed the prompt
        if sequence.is_adopted:
            sequence.num_to_land = sequence.num_tokens - 1
        if sequence.state is SequenceState.LANDED:
            if sequence.is_adopted:
                self._received(sequence)
            self._run(sequence)
        else:
            sequence.move(SequenceState.STARTED)

    def convert(self, sequence: Sequence) -> None:
        """Compute a reserved sequence here after all. If its KV has landed already, all full pages of it are in the
        prefix cache: it queues as if it were new, because its last token has to be computed once more and that must
        not write into pages that others may share by now. So does one whose layers have windows: it has no pages for
        what its last token does not see. And so does one that has a state, without which its cached pages are of no
        use, or cached pages of prompt tokens whose log-probabilities are wanted."""
        needs_others = self._limits.has_windows or self._limits.has_states
        if sequence.num_computed > sequence.num_cacheable:
            needs_others = True
        if sequence.state is SequenceState.RESERVED and not needs_others:
            self._run(sequence)
        else:
            self._requeue(sequence)

    def freeze(self, sequence: Sequence) -> None:
        """Stop a running sequence, which keeps its slot and its pages."""
        self._take_out(sequence)
        self.pages.rebook(sequence, SequenceState.FROZEN)
        self._table.put(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Let a frozen sequence continue."""
        self._run(sequence)

    def begin_send(self, sequence: Sequence) -> None:
        """A transfer reads the sequence's pages from now on, so they have to stay in place."""
        sequence.num_sends += 1

    def end_send(self, sequence: Sequence) -> None:
        """Nothing of that transfer touches the pages any more."""
        sequence.num_sends -= 1
        self._is_stuck = False  # it may give up its pages again

    def release(self, sequence: Sequence) -> None:
        """End a reservation, or a sequence whose pages were held or draining."""
        assert sequence.state not in (SequenceState.WAITING, SequenceState.RUNNING)
        self._take_out(sequence)
        self.pages.retain(sequence)
        self.pages.give_up(sequence)
        self._table.end(sequence)
        self._promised.withhold()

    def abort(self, sequence: Sequence, keep_pages: bool) -> bool:
        """End a sequence in any state. With `keep_pages`, or where they are being sent, its pages, if any, drain until
        `release`; returns whether there are such pages."""
        if sequence.state is SequenceState.DRAINING:
            return True
        self._take_out(sequence)
        if (keep_pages or sequence.num_sends) and sequence.pages:
            self.pages.rebook(sequence, SequenceState.DRAINING)
            self._promised.withhold()
            return True
        self.pages.retain(sequence)
        self.pages.give_up(sequence)
        self._table.end(sequence)
        self._promised.withhold()
        return False

    def set_page_limit(self, num_pages: int) -> None:
        """See `PagePool.set_limit`. Promised pages are withheld when they are neither taken nor promised any more."""
        self._promised.set_limit(num_pages)
        self._is_stuck = False

    def follow_grammar(self, sequence: Sequence) -> None:
        """A running sequence with a grammar has a new token. It stands back if it has come to a part of the grammar
        that is still being compiled."""
        if sequence.is_ready:
            sequence.look_at_grammar()
        else:
            sequence.is_plainly_greedy = False
            self._unready.append(sequence)

    def look_again(self) -> None:
        """Something has changed that the scheduler cannot know about: a grammar is ready."""
        self._is_stuck = False

    def schedule(self) -> ScheduledStep:
        """What to compute next; empty if nothing can be. To be followed by `computed`."""
        max_tokens, page_tokens = self._limits.max_step_tokens, self._limits.page_tokens
        self._secure_pages()
        decoding = [s for s in self._table.running if s.num_computed + 1 == len(s.tokens) and s.ticket is None]
        if self._unready:
            self._unready = [s for s in self._unready if s.state is SequenceState.RUNNING and not s.is_ready]
        if self._starved or self._unready:
            decoding = [s for s in decoding if s not in self._starved and s not in self._unready]
        step = ScheduledStep(decoding[:max_tokens], max_scored_tokens=self._limits.max_scored_tokens)
        self.pages.before_step(step.decoding)
        has_prompts = len(step.decoding) < len(self._table.running) or bool(self._table.waiting)
        if has_prompts and self._limits.auto_step_tokens:
            context_tokens = sum([len(sequence.tokens) for sequence in step.decoding])
            max_tokens = self.sizes.step_tokens(len(step.decoding), context_tokens)
        budget = max_tokens - len(step.decoding)
        if budget and len(step.decoding) < len(self._table.running):
            for sequence in self._table.running:
                if sequence in self._unready:
                    continue
                if budget and (sequence.num_uncomputed > 1 or sequence.ticket is not None):
                    self.pages.before_step((sequence,))
                    budget -= step.add_chunk(sequence, budget, page_tokens, begins=False)
        while budget and (admitted := self._next_waiting()) is not None and self._admit(admitted):
            budget -= step.add_chunk(admitted, budget, page_tokens, begins=True)
        step.state_copies = self.pages.take_copies()
        self._is_stuck = not step
        return step

    def computed(self, step: ScheduledStep) -> None:
        """The step's KV is in the sequences' pages. Pages that have become full go into the prefix cache."""
        page_tokens = self._limits.page_tokens
        for sequence in step.decoding:
            sequence.num_computed += 1
            if sequence.num_computed % page_tokens == 0:
                self.pages.remember(sequence)
        for chunk in step.chunks:
            chunk.sequence.num_computed += chunk.num_tokens
            self.pages.remember(chunk.sequence)
        if self._limits.has_windows:
            for sequence in step.decoding:
                self.pages.give_back_unseen(sequence)
            for chunk in step.chunks:
                self.pages.give_back_unseen(chunk.sequence)
            self._promised.withhold()

    def finish(self, sequence: Sequence) -> None:
        """A running sequence is done: its full pages become prefix cache. Where they are being sent they drain first,
        until `release`."""
        self._take_out(sequence)
        if sequence.num_sends:
            self.pages.rebook(sequence, SequenceState.DRAINING)
        else:
            self.pages.retain(sequence)
            self.pages.give_up(sequence)
            self._table.end(sequence)
        self._promised.withhold()

    def hold(self, sequence: Sequence) -> None:
        """A running sequence is done, but its pages stay as they are until `release`."""
        self._take_out(sequence)
        self.pages.rebook(sequence, SequenceState.HELD)

    @property
    def has_work(self) -> bool:
        return bool(self._table.running or self._table.waiting) and not self._is_stuck

    @property
    def num_running(self) -> int:
        return len(self._table.running)

    @property
    def num_waiting(self) -> int:
        return len(self._table.waiting)

    @property
    def num_free_slots(self) -> int:
        return max(0, self.sizes.max_num_seqs - self._table.num_taken_slots - len(self._table.waiting))

    @property
    def num_free_pages(self) -> int:
        """Free and evictable pages that no queued sequence is going to need, no running one will need soon, and none is
        promised: as many can be reserved now."""
        return max(0, self.pages.pool.num_available - self._outstanding.of_queue - self._outstanding.growth_room)

    @property
    def num_wanted_pages(self) -> int:
        """Pages that sequences wait for, beyond those in use: those with a slot in the queue, and those that run but
        lack pages for their next token."""
        num_slots = max(0, self.sizes.max_num_seqs - self._table.num_taken_slots)
        waiting = self._table.waiting[:num_slots]
        num_starved = len(self._starved) * len(self._limits.windows)
        return sum(map(self._outstanding.to_run, waiting)) + num_starved

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that queued and running sequences have yet to compute before their next one is sampled."""
        return sum(s.num_uncomputed for s in self._table.waiting) + sum(s.num_uncomputed for s in self._table.running)

    def check_integrity(self) -> None:
        """Raises AssertionError if sequences, queues and pages do not add up. Looks at everything: for tests
        and idle moments."""
        self._table.check_integrity()
        assert self._table.num_taken_slots <= self._limits.max_num_seqs
        if self._limits.reserves_output:
            assert self.num_preemptions == 0
            self._promised.check_integrity()
        self.pages.check_integrity(self._table.by_key.values())

    def _secure_pages(self) -> None:
        """Give each running sequence pages for all its tokens, first in order first; preempt from the end for them. A
        sequence that finds none to preempt and cannot be preempted itself, because its pages are being sent, waits."""
        page_tokens, has_windows = self._limits.page_tokens, self._limits.has_windows
        self._starved.clear()
        at = 0
        while at < len(self._table.running):
            sequence = self._table.running[at]
            is_full = len(sequence.tokens) > len(sequence.pages) * page_tokens
            if has_windows:
                is_full = self.pages.lacks_pages(sequence)
            if is_full and not self.pages.grow(sequence, sequence.num_tokens):
                assert not self._limits.reserves_output, f"{sequence.key} lacks a page that was promised to it"
                victim = self._victim(sequence)
                if victim.is_preemptible:
                    self._preempt(victim)
                    continue  # with the same sequence, unless it was itself the victim
                self._starved.append(sequence)
            at += 1

    def _victim(self, needy: Sequence) -> Sequence:
        """The last in order that may be preempted; at the latest `needy` itself."""
        for sequence in reversed(self._table.running):
            if sequence.is_preemptible or sequence is needy:
                return sequence
        raise AssertionError("a sequence that needs pages is running")

    def _preempt(self, sequence: Sequence) -> None:
        self._requeue(sequence)
        self.num_preemptions += 1

    def _requeue(self, sequence: Sequence) -> None:
        self._take_out(sequence)
        self.pages.give_up(sequence)
        sequence.move(SequenceState.WAITING)
        self._table.put(sequence)
        self._promised.withhold()

    def _next_waiting(self) -> Sequence | None:
        return next((sequence for sequence in self._table.waiting if sequence.is_ready), None)

    def _admit(self, sequence: Sequence) -> bool:
        """Move a sequence from the queue into the batch. False if there is no slot, or if there are too few pages."""
        if self._table.num_taken_slots >= self.sizes.max_num_seqs:
            return False
        if not self._take(sequence, sequence.num_tokens, PageState.ACTIVE):
            return False
        self._table.take_out(sequence)
        sequence.move(SequenceState.RUNNING)
        self._table.put(sequence)
        return True

    def _take(self, sequence: Sequence, num_tokens: int, owner: PageState, spare: int = 0) -> bool:
        """Pages for so many tokens, if there are as many as the sequence needs now or is promised, and `spare` more."""
        if self._limits.reserves_output:
            spare += self._limits.pages_for(sequence.most_tokens) - self._limits.pages_for(num_tokens)
        return self.pages.take(sequence, num_tokens, owner, spare + self._outstanding.growth_room)

    def _received(self, sequence: Sequence) -> None:
        """The KV of a reservation is here, all of it."""
        sequence.num_computed = sequence.num_to_land
        self.pages.remember_received(sequence, is_whole=True)
        self._promised.withhold()

    def _run(self, sequence: Sequence) -> None:
        """Move a sequence from a reserved state into the batch, in the slot that it has."""
        self._take_out(sequence)
        self.pages.rebook(sequence, SequenceState.RUNNING)
        self._table.put(sequence)
        if not sequence.is_ready:
            self._unready.append(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        """Out of queue, batch or reservations. What it leaves may let others go on."""
        self._table.take_out(sequence)
        self._is_stuck = False
