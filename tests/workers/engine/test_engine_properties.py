"""The engine under any order of requests, transfers, aborts and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipstream.router.protocol.messages import StepTime
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import StepPlan
from slipstream.workers.engine.scheduling.sequence import SequenceState
from slipstream.workers.interface.engine import AttemptKey, EngineRequestError, Reservation
from tests.support.workers.engine_driver import make_limits, make_request, make_ticket
from tests.support.workers.fake_executor import GROUP, STATE, FakeExecutor, next_token, state_after
from tests.support.workers.kept_states import kept_without_kv

VOCAB_SIZE = 30
SALTS = ("", "moved")
EOS_ID = 5
WINDOWS: tuple[tuple[int | None, ...], ...] = ((None,), (None, 6), (5,), (None, 9, 3))
PREFIX = [11, 12, 13, 14, 15, 16, 17, 18, 19]  # prompts share its beginning, so that they share pages

prompts = st.builds(
    lambda shared, own: [*PREFIX[:shared], *own],
    st.integers(0, len(PREFIX)),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
)


@dataclass
class Expected:
    """What the test knows of a live sequence: its tokens so far, how many may come, and its part in a transfer."""

    tokens: list[int]
    num_prompt: int
    max_tokens: int
    ignore_eos: bool
    num_resumed: int
    transfer_id: int | None = None
    reservation: Reservation | None = None
    has_landed: bool = False
    has_started: bool = False
    pinned: list[int] = field(default_factory=list)
    sent_pages: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # block and group of each page of a transfer
    first_page: int = 0
    frozen: dict[int, bytes] = field(default_factory=dict)  # page -> content that must not change
    moves_with_room: int | None = None  # it comes from another worker; 0: more of its pages will come

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


def wanted_places(limits: EngineLimits, first_block: int, num_tokens: int) -> list[tuple[int, int]]:
    """Block and group of the pages that a prompt is sent with, in their order."""
    if limits.state_block_tokens is not None:
        return [(STATE, 0)]
    last_block = (num_tokens - 1) // limits.page_tokens
    return [
        (block, group)
        for block in range(first_block, last_block + 1)
        for group, window in enumerate(limits.windows)
        if window is None or (block + 1) * limits.page_tokens > num_tokens - window + 1
    ] + [(STATE, at) for at in range(limits.state_pages)]


def moved_places(limits: EngineLimits, reservation: Reservation, num_tokens: int, room: int) -> list[tuple[int, int]]:
    """Block and group of the pages that are wanted of a sequence that moves: of groups without a window those that are
    full, or in the last round (with `room`) all that are seen, and the state."""
    if limits.state_block_tokens is not None:
        return [(STATE, 0)] * len(reservation.page_ids)
    places: list[tuple[int, int]] = []
    state = [(STATE, at) for at in range(limits.state_pages if room else 0)]
    for block in range(20):
        for group, window in enumerate(limits.windows):
            if window is None:
                is_wanted = block >= reservation.first_page
            else:
                is_wanted = room > 0 and (block + 1) * limits.page_tokens > num_tokens - 1 - window + 1
            if is_wanted and len(places) + len(state) < len(reservation.page_ids):
                places.append((block, group))
    assert len(places) + len(state) == len(reservation.page_ids)
    return places + state


class PoisonedMemory:
    """`PageMemory` that spoils the pages whose memory is returned. None of them is in use."""

    def __init__(self, executor: FakeExecutor) -> None:
        self._executor = executor

    def return_pages(self, page_ids: Sequence[int]) -> None:
        assert not set(page_ids) & set(+self._executor.pinned), "the memory of a page in use is returned"
        self._executor.kv[list(page_ids)] = -1


class EngineMachine(RuleBasedStateMachine):
    reserves_output = False

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[AttemptKey, Expected] = {}
        self.draining: dict[AttemptKey, Expected] = {}
        self.num_names = 0
        self.num_accepted = 0
        self.num_ended = 0
        self.num_seen_plans = 0

    @initialize(
        windows=st.sampled_from(WINDOWS),
        state_pages=st.sampled_from((0, 0, 1, 3)),
        is_state_only=st.sampled_from((False, False, False, True)),
        num_spare_pages=st.integers(0, 13),
        max_step_tokens=st.integers(1, 12),
        max_num_seqs=st.integers(1, 5),
        prefix_caching=st.booleans(),
        sizes_itself=st.booleans(),
    )
    def build(
        self,
        windows: tuple[int | None, ...],
        state_pages: int,
        is_state_only: bool,
        num_spare_pages: int,
        max_step_tokens: int,
        max_num_seqs: int,
        prefix_caching: bool,
        sizes_itself: bool,
    ) -> None:
        if is_state_only:
            windows, state_pages = (None,), 0
        limits = make_limits(
            num_pages=100,
            page_tokens=32 if is_state_only else 4,
            state_block_tokens=4 if is_state_only else None,
            max_model_len=28,
            max_num_seqs=max_num_seqs,
            max_step_tokens=max_step_tokens,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(EOS_ID,),
            prefix_caching=prefix_caching,
            windows=windows,
            state_pages=state_pages,
            reserves_output=self.reserves_output,
            auto_step_tokens=sizes_itself,
            auto_num_seqs=sizes_itself,
        )
        limits = replace(limits, num_pages=limits.pages_for(limits.max_model_len) + num_spare_pages)
        self.executor = FakeExecutor(
            limits.num_pages,
            limits.page_tokens,
            VOCAB_SIZE,
            windows,
            limits.checkpoint_pages,
            is_state_only=is_state_only,
        )
        self.engine = NativeEngine(limits, self.executor, memory=PoisonedMemory(self.executor))

    def _next_token(self, tokens: Sequence[int]) -> int:
        limits = self.engine.limits
        return next_token(
            tokens,
            VOCAB_SIZE,
            limits.windows,
            has_state=limits.has_states,
            is_state_only=limits.state_block_tokens is not None,
        )

    def _name(self) -> str:
        self.num_names += 1
        return f"r{self.num_names}"

    def _accept(self, key: AttemptKey, expected: Expected) -> None:
        self.live[key] = expected
        self.num_accepted += 1

    @rule(
        prompt=prompts,
        resumed=st.integers(0, 3),
        max_tokens=st.integers(1, 10),
        ignore_eos=st.booleans(),
        priority=st.integers(0, 1),
    )
    def add(self, prompt: list[int], resumed: int, max_tokens: int, ignore_eos: bool, priority: int) -> None:
        output = [7] * min(resumed, max_tokens - 1)
        name = self._name()
        self.engine.add(
            make_request(name, prompt, output, max_tokens=max_tokens, ignore_eos=ignore_eos, priority=priority)
        )
        expected = Expected([*prompt, *output], len(prompt), max_tokens, ignore_eos, len(output))
        self._accept((name, 0), expected)

    @rule(prompt=prompts, data=st.data())
    def add_prefill(self, prompt: list[int], data: st.DataObject) -> None:
        limits = self.engine.limits
        first_page = data.draw(st.integers(0, limits.blocks_for(len(prompt)) - 1))
        name, places = self._name(), wanted_places(limits, first_page, len(prompt))
        ticket = make_ticket(self.num_names, first_page, len(places))
        request = make_request(name, prompt, ignore_eos=True)
        if limits.whole_pages_for(len(prompt)) > limits.num_pages:
            with pytest.raises(EngineRequestError, match="do not fit"):
                self.engine.add_prefill(request, ticket)
            return
        self.engine.add_prefill(request, ticket)
        expected = Expected(list(prompt), len(prompt), 8, True, 0, transfer_id=self.num_names)
        expected.places, expected.first_page = places, first_page
        self._accept((name, 0), expected)

    @rule(prompt=prompts, max_tokens=st.integers(2, 10))
    def reserve(self, prompt: list[int], max_tokens: int) -> None:
        name = self._name()
        before, capacity = self.engine.page_counts(), self.engine.capacity()
        reservation = self.engine.reserve(make_request(name, prompt, max_tokens=max_tokens, ignore_eos=True))
        if reservation is None:
            assert self.engine.page_counts() == before
            assert capacity.free_slots < 1 or capacity.free_pages < self._pages_to_reserve(len(prompt), max_tokens)
            return
        if not self.engine.limits.has_states:  # else those that it could go on from, without what is sent
            assert reservation.num_cached_tokens == reservation.first_page * self.engine.limits.page_tokens
        assert reservation.num_cached_tokens < len(prompt)
        places = wanted_places(self.engine.limits, reservation.first_page, len(prompt))
        assert len(reservation.page_ids) == len(places)
        expected = Expected(list(prompt), len(prompt), max_tokens, True, 0, reservation=reservation, places=places)
        self._pin(expected, reservation.page_ids)
        self._accept((name, 0), expected)

    def _pages_to_reserve(self, num_prompt: int, max_tokens: int) -> int:
        """Credits can be spent: the router counts pages for the prompt and one token more, or for the
        whole answer."""
        limits = self.engine.limits
        return limits.pages_for(num_prompt + (max_tokens if self.reserves_output else 1))

    @rule(prompt=prompts, num_output=st.integers(1, 4), max_tokens=st.integers(6, 10), room=st.integers(0, 3))
    def adopt(self, prompt: list[int], num_output: int, max_tokens: int, room: int) -> None:
        """A sequence decodes elsewhere and is to go on here."""
        name = self._name()
        tokens = list(prompt)
        for _ in range(num_output):
            tokens.append(self._next_token(tokens))
        request = make_request(
            name, prompt, tokens[len(prompt) :], max_tokens=max_tokens, ignore_eos=True, cache_salt=SALTS[1]
        )
        reservation = self.engine.adopt(request, room)
        if reservation is not None:
            expected = Expected(tokens, len(prompt), max_tokens, True, num_output, reservation=reservation)
            expected.moves_with_room = room
            expected.places = moved_places(self.engine.limits, reservation, len(tokens), room)
            self._pin(expected, tuple(reservation.page_ids))
            self._accept((name, 0), expected)

    @rule(data=st.data(), room=st.integers(0, 2))
    def copied(self, data: st.DataObject, room: int) -> None:
        """Its full pages have come; it has another token at its source by now, and `room` 0 begins one more round."""
        key = self._some(data, SequenceState.RESERVED)
        if key is not None and self.live[key].moves_with_room == 0:
            self._copied(key, room)

    def _copied(self, key: AttemptKey, room: int) -> None:
        expected = self.live[key]
        assert expected.reservation is not None
        self._unpin(expected)
        num_full = (len(expected.tokens) - 1) // self.engine.limits.page_tokens * self.engine.limits.page_tokens
        self.executor.fill_list(expected.reservation.page_ids, expected.places, expected.tokens[:num_full])
        assert self.engine.migrations.copied(key)
        grows = expected.num_output + 2 < expected.max_tokens
        new = (self._next_token(expected.tokens),) if grows else ()
        reservation = self.engine.migrations.extend(key, new, room)
        if reservation is None:
            assert not self.reserves_output, "pages that were promised are not there"
            self.engine.abort(key)
            del self.live[key]
            self.num_ended += 1
            return
        expected.tokens += new
        expected.reservation, expected.moves_with_room = reservation, room
        expected.places = moved_places(self.engine.limits, reservation, len(expected.tokens), room)
        self._pin(expected, tuple(reservation.page_ids))

    def _some(self, data: st.DataObject, *states: SequenceState) -> AttemptKey | None:
        keys = [key for key in self.live if self.engine.state(key) in states]
        return data.draw(st.sampled_from(keys)) if keys else None

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        key = self._some(data, SequenceState.RESERVED, SequenceState.STARTED)
        if key is not None:
            self._land(key)

    def _land(self, key: AttemptKey) -> None:
        expected = self.live[key]
        assert expected.reservation is not None
        if expected.moves_with_room == 0:
            self._copied(key, 1)
            return
        self._unpin(expected)
        landed = expected.tokens[: expected.num_prompt]
        if expected.moves_with_room is not None:
            landed = expected.tokens[:-1]  # of the last token, nothing is computed at the source
        self.executor.fill_list(expected.reservation.page_ids, expected.places, landed)
        assert self.engine.land(key)
        expected.has_landed = True

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        key = self._some(data, SequenceState.RESERVED, SequenceState.LANDED)
        if key is not None:
            self._start(key)

    def _start(self, key: AttemptKey) -> None:
        expected = self.live[key]
        if expected.moves_with_room is not None:
            if expected.moves_with_room:
                assert self.engine.start(key, ())
                expected.has_started = True
            return
        token_id = self._next_token(expected.tokens)
        assert self.engine.start(key, (token_id,))
        expected.tokens.append(token_id)
        expected.has_started = True

    @rule(data=st.data())
    def convert(self, data: st.DataObject) -> None:
        key = self._some(data, SequenceState.RESERVED, SequenceState.LANDED)
        if key is not None and self.live[key].moves_with_room is None:
            expected = self.live[key]
            self._unpin(expected)
            request = make_request(key[0], expected.tokens, max_tokens=expected.max_tokens, ignore_eos=True)
            self.engine.add(request)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held_or_reserved = (SequenceState.HELD, SequenceState.RESERVED, SequenceState.LANDED, SequenceState.STARTED)
        key = self._some(data, *held_or_reserved)
        if key is not None:
            self._release(key)

    def _release(self, key: AttemptKey) -> None:
        expected = self.live.pop(key) if key in self.live else self.draining.pop(key)
        self._assert_unchanged(expected)
        self._unpin(expected)
        assert self.engine.release(key)
        self.num_ended += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep_pages=st.booleans())
    def abort(self, data: st.DataObject, keep_pages: bool) -> None:
        key = data.draw(st.sampled_from(list(self.live)))
        expected = self.live.pop(key)
        if self.engine.abort(key, keep_pages):
            assert keep_pages
            assert self.engine.state(key) is SequenceState.DRAINING
            self.draining[key] = expected
        else:
            self._unpin(expected)
            assert self.engine.state(key) is None
            self.num_ended += 1

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def drained(self, data: st.DataObject) -> None:
        self._release(data.draw(st.sampled_from(list(self.draining))))

    @rule(num_pages=st.integers(0, 24))
    def set_page_limit(self, num_pages: int) -> None:
        self.engine.set_page_limit(num_pages)
        use = self.engine.page_use()
        if not self.reserves_output:  # else it holds for what is not promised: see `check_integrity`
            assert use.num_used + use.num_cached <= max(min(num_pages, self.engine.limits.num_pages), use.num_used)

    @rule(data=st.data())
    def freeze(self, data: st.DataObject) -> None:
        """It stands still to move away."""
        keys = [key for key in self.live if self._decodes(key)]
        if keys:
            self.engine.migrations.freeze(data.draw(st.sampled_from(keys)))

    def _decodes(self, key: AttemptKey) -> bool:
        sequence = self.engine._scheduler.get(key)
        is_running = sequence is not None and sequence.state is SequenceState.RUNNING
        return is_running and sequence.num_uncomputed == 1 and sequence.ticket is None

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        key = self._some(data, SequenceState.FROZEN)
        if key is not None:
            assert self.engine.migrations.resume(key)

    @rule(level_s=st.sampled_from((None, 0.001, 0.1)), num_decoding=st.integers(0, 4), seconds=st.floats(0.0, 1.0))
    def step_took(self, level_s: float | None, num_decoding: int, seconds: float) -> None:
        self.engine.follow_level(level_s)
        self.engine.step_took(seconds, StepTime(4 - num_decoding, 4, num_decoding, 20 * num_decoding, seconds))

    @rule(num_steps=st.integers(1, 4))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._step()

    def _step(self) -> None:
        expects_work = self.engine.has_work
        outputs = self.engine.step()
        has_planned = len(self.executor.plans) > self.num_seen_plans
        assert expects_work or not has_planned, "work where there was said to be none"
        self.num_seen_plans = len(self.executor.plans)
        if has_planned:
            plan = self.executor.plans[-1]
            assert plan.arrays.num_tokens <= self.engine.limits.max_step_tokens
            self._follow_sends(plan)
        for output in outputs:
            key = (output.request_id, output.attempt)
            expected = self.live[key]
            assert output.index == expected.num_output
            [token_id] = output.token_ids
            assert token_id == self._next_token(expected.tokens), "another token than undisturbed"
            expected.tokens.append(token_id)
            is_eos = token_id == EOS_ID and not expected.ignore_eos
            is_full = expected.num_output == expected.max_tokens
            is_full |= len(expected.tokens) == self.engine.limits.max_model_len
            assert output.finish_reason == ("stop" if is_eos else "length" if is_full else None)
            if expected.transfer_id is not None:
                assert self.engine.state(key) is SequenceState.HELD
                assert list(expected.frozen) == expected.sent_pages, "not all pages are known to be complete"
                self._pin(expected, tuple(expected.sent_pages))
            elif output.finish_reason is not None:
                assert self.engine.state(key) is None
                del self.live[key]
                self.num_ended += 1

    def _follow_sends(self, plan: StepPlan) -> None:
        """Pages that are said to be complete hold what they should and do not change any more."""
        sending = {e.transfer_id: e for e in self.live.values() if e.transfer_id is not None}
        for send in plan.sends:
            expected = sending[send.ticket.transfer_id]
            assert not expected.sent_pages, "sending begins a second time"
            expected.sent_pages = np.frombuffer(send.page_ids, np.int32).tolist()
        for progress in plan.progress:
            expected = sending[progress.transfer_id]
            page_tokens = self.engine.limits.page_tokens
            for at in range(max(progress.num_pages - expected.first_page, 0)):
                page, (block, group) = expected.sent_pages[at], expected.places[at]
                if block == STATE:
                    assert self.executor.kv[page, 0].tolist() == [state_after(expected.tokens), STATE - group]
                    expected.frozen.setdefault(page, self.executor.kv[page].tobytes())
                    continue
                tokens = expected.tokens[block * page_tokens : (block + 1) * page_tokens]
                assert self.executor.kv[page, : len(tokens), 0].tolist() == tokens
                assert self.executor.kv[page, 0, 1] == block * page_tokens + GROUP * group
                expected.frozen.setdefault(page, self.executor.kv[page].tobytes())
        for expected in sending.values():
            self._assert_unchanged(expected)

    def _pin(self, expected: Expected, pages: tuple[int, ...]) -> None:
        expected.pinned = list(pages)
        self.executor.pinned.update(pages)

    def _unpin(self, expected: Expected) -> None:
        self.executor.pinned.subtract(expected.pinned)
        expected.pinned = []

    def _assert_unchanged(self, expected: Expected) -> None:
        for page, content in expected.frozen.items():
            assert self.executor.kv[page].tobytes() == content, f"page {page} changed while it was sent"

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check_integrity()
        assert sum(self.engine.page_counts().values()) == self.engine.limits.num_pages
        if self.engine.limits.has_states:
            assert kept_without_kv(self.engine, SALTS) == []
        assert set(self.engine.keys()) == self.live.keys() | self.draining.keys()
        capacity = self.engine.capacity()
        assert min(capacity.free_slots, capacity.free_pages, capacity.free_tokens) >= 0

    def teardown(self) -> None:
        """Everything comes to its end once transfers do: nothing is lost, and no page is left with an owner."""
        if not hasattr(self, "engine"):
            return
        self.engine.set_page_limit(self.engine.limits.num_pages)
        for key in list(self.draining):
            self._release(key)
        for _ in range(2000):
            while self.engine.has_work:
                self._step()
                self.engine.check_integrity()
            for key, expected in list(self.live.items()):
                state = self.engine.state(key)
                if state is SequenceState.HELD:
                    self._release(key)
                if state is SequenceState.FROZEN:
                    assert self.engine.migrations.resume(key)
                if key not in self.live:
                    continue
                if state in (SequenceState.RESERVED, SequenceState.STARTED):
                    self._land(key)
                if key not in self.live:
                    continue
                if state in (SequenceState.RESERVED, SequenceState.LANDED) and not expected.has_started:
                    self._start(key)
            if not self.live:
                break
        assert not self.live, f"without an end: {self.engine.keys()}"
        assert self.num_ended == self.num_accepted
        counts = self.engine.page_counts()
        assert counts["free"] + counts["cached"] == self.engine.limits.num_pages
        assert not +self.executor.pinned


EngineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestEngineInAnyOrder = EngineMachine.TestCase


class ReservingMachine(EngineMachine):
    """Nothing is preempted and no promise is broken: `check_integrity` says so after each rule."""

    reserves_output = True


ReservingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestEngineThatReservesOutput = ReservingMachine.TestCase
