"""The watchdog over the engine thread, with a clock that the test turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.workers.process.inbox import Inbox
from slipstream.workers.process.watchdog import Watchdog

BOUND_S = 60.0
TIMEOUT_S = 20.0


@dataclass
class OneTimer:
    """Holds the watchdog's one timer."""

    now_s: float = 0.0
    due_s: float = 0.0
    callback: Callable[[], None] | None = None

    def call_later(self, delay: float, callback: Callable[[], None], /) -> OneTimer:
        self.due_s, self.callback = self.now_s + delay, callback
        return self

    def cancel(self) -> None:
        self.callback = None

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.callback is not None and self.due_s <= end_s:
            self.now_s, callback, self.callback = self.due_s, self.callback, None
            callback()
        self.now_s = end_s


@dataclass
class Bench:
    timer: OneTimer = field(default_factory=OneTimer)
    turn: int | None = None
    barks_s: list[float] = field(default_factory=list)  # when

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.timer, lambda: self.turn, BOUND_S, lambda: self.barks_s.append(self.timer.now_s))


def test_a_turn_that_does_not_end_is_noticed_once() -> None:
    bench = Bench()
    bench.timer.advance(1000.0)
    bench.turn = 1
    bench.timer.advance(BOUND_S)
    assert bench.barks_s == []
    bench.timer.advance(BOUND_S / 4)
    (bark_s,) = bench.barks_s
    assert 1000.0 + BOUND_S <= bark_s <= 1000.0 + BOUND_S * 5 / 4
    bench.timer.advance(1000.0)
    assert len(bench.barks_s) == 1


def test_turns_that_end_and_rest_of_any_length_are_no_concern() -> None:
    bench = Bench()
    for turn in range(100):
        bench.turn = turn
        bench.timer.advance(BOUND_S)
    bench.turn = None
    bench.timer.advance(100 * BOUND_S)
    assert bench.barks_s == []


def test_a_process_that_was_stopped_as_a_whole_was_not_stuck() -> None:
    bench = Bench(turn=1)
    bench.timer.advance(BOUND_S / 4)
    bench.timer.due_s += 1000.0  # no timer runs meanwhile
    bench.timer.advance(1000.0 + BOUND_S / 4)
    bench.turn = 2
    bench.timer.advance(BOUND_S)
    assert bench.barks_s == []


def test_nothing_is_noticed_after_close() -> None:
    bench = Bench(turn=1)
    bench.watchdog.close()
    bench.timer.advance(1000.0)
    assert bench.barks_s == []


def test_an_inbox_shows_a_turn_from_each_take_to_the_next() -> None:
    inbox: Inbox[str] = Inbox(10)
    assert inbox.turn is None
    inbox.take(0)
    first = inbox.turn
    inbox.take(0)
    assert first is not None
    assert inbox.turn not in (None, first)
    consumer = threading.Thread(target=inbox.take, args=(None,))
    consumer.start()
    deadline = threading.Event()
    while inbox.turn is not None and consumer.is_alive():
        deadline.wait(0.001)
    assert inbox.turn is None
    inbox.put("done")
    consumer.join(TIMEOUT_S)
    assert inbox.turn is not None
