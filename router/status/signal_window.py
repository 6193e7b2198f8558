"""Counts requests for the windows of `Signals`: the last seconds and minutes.

A request is counted at a few moments of its life, each of which costs a few additions to the current second. As seconds
pass, they are summed up into stretches of `COARSE_S`:

    fine    | s | s | s | s | s | s | s | s | s | s |          the last SHORT_S seconds, one by one
    coarse  | 10 s | 10 s | 10 s | ... | so far |              the last LONG_S seconds

Values are kept in logarithmic bins, so memory is bounded by the number of stretches and bins, whatever the load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from slipstream.router.status.load_signals import NUM_POINTS, ClassSignals, Spread, WindowSignals

LATEST_S, LATEST_ARRIVALS = 3, 8  # the latest window: of so many seconds, or more until there are so many
SHORT_S = 10
LONG_S = 300
COARSE_S = 10
BINS_A_DOUBLING = 8  # so that a bin's middle is within 5 percent of what is in it
SMALLEST = 1e-6  # seconds; tokens are 1 or more


class Binned:
    """Values above 0 in logarithmic bins, with their exact mean and variance."""

    __slots__ = ("bins", "count", "squares", "total")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.squares = 0.0

    def add(self, value: float) -> None:
        at = int(BINS_A_DOUBLING * math.log2(value / SMALLEST)) if value > SMALLEST else 0
        bins = self.bins
        bins[at] = bins.get(at, 0) + 1
        self.count += 1
        self.total += value
        self.squares += value * value

    def merge(self, other: Binned) -> None:
        bins = self.bins
        for at, count in other.bins.items():
            bins[at] = bins.get(at, 0) + count
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    def spread(self) -> Spread:
        if not self.count:
            return Spread()
        mean = self.total / self.count
        variance = max(self.squares / self.count - mean * mean, 0.0)
        points = self._at([(at + 0.5) / NUM_POINTS for at in range(NUM_POINTS)])
        p50, p90, p99 = self._at([0.5, 0.9, 0.99])
        return Spread(
            self.count, mean, variance / (mean * mean) if mean else 0.0, p50, p90, p99, tuple(points) if mean else ()
        )

    def _at(self, shares: list[float]) -> list[float]:
        """The middles of the bins where the ascending shares of the values are reached."""
        found: list[float] = []
        so_far = 0
        for at, count in sorted(self.bins.items()):
            so_far += count
            while len(found) < len(shares) and so_far >= shares[len(found)] * self.count:
                found.append(SMALLEST * 2.0 ** ((at + 0.5) / BINS_A_DOUBLING))
        return found


class ClassCounts:
    """The counts of one priority class. Levels are summed over the arrivals."""

    __slots__ = ("itl_slo_s", "num_arrivals", "num_finished", "num_first", "num_good", "num_itl_met", "num_ttft_met",
                 "ttft_slo_s")  # fmt: skip

    def __init__(self) -> None:
        self.num_arrivals = self.num_first = self.num_ttft_met = 0
        self.num_finished = self.num_itl_met = self.num_good = 0
        self.ttft_slo_s = self.itl_slo_s = 0.0

    def merge(self, other: ClassCounts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def signals(self, priority: int) -> ClassSignals:
        num_levels = max(self.num_arrivals, 1)
        return ClassSignals(
            priority,
            self.num_arrivals,
            self.ttft_slo_s / num_levels,
            self.itl_slo_s / num_levels,
            self.num_first,
            self.num_ttft_met,
            self.num_finished,
            self.num_itl_met,
            self.num_good,
        )


class CountedSpan:
    """What happened in a stretch of time. `steps_squared` sums the squares of differences between the arrivals of
    neighbouring seconds."""

    __slots__ = ("classes", "expected_osl", "foreseen_tokens", "isl", "itl_s", "num_arrivals", "num_cached_tokens",
                 "num_failed", "num_left", "num_output_tokens", "num_prompt_tokens", "num_refused", "num_remote",
                 "num_seconds", "osl", "queue_wait_s", "steps_squared", "ttft_s")  # fmt: skip

    def __init__(self) -> None:
        self.num_seconds = 0
        self.num_arrivals = self.num_refused = self.num_failed = self.num_left = 0
        self.num_prompt_tokens = self.num_cached_tokens = self.num_output_tokens = self.num_remote = 0
        self.steps_squared = self.foreseen_tokens = 0.0
        self.isl, self.osl, self.expected_osl = Binned(), Binned(), Binned()
        self.queue_wait_s, self.ttft_s, self.itl_s = Binned(), Binned(), Binned()
        self.classes: dict[int, ClassCounts] = {}

    def of_class(self, priority: int) -> ClassCounts:
        counts = self.classes.get(priority)
        if counts is None:
            counts = self.classes[priority] = ClassCounts()
        return counts

    def merge(self, other: CountedSpan) -> None:
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Binned):
                mine.merge(theirs)
            elif name == "classes":
                for priority, counts in theirs.items():
                    self.of_class(priority).merge(counts)
            else:
                setattr(self, name, mine + theirs)

    def signals(self, span_s: float) -> WindowSignals:
        mean = self.num_arrivals / self.num_seconds if self.num_seconds else 0.0
        burstiness = 0.5 * self.steps_squared / self.num_seconds / mean if mean else 1.0
        return WindowSignals(
            span_s=span_s,
            num_arrivals=self.num_arrivals,
            num_refused=self.num_refused,
            num_failed=self.num_failed,
            num_left=self.num_left,
            burstiness=burstiness,
            isl=self.isl.spread(),
            osl=self.osl.spread(),
            expected_osl=self.expected_osl.total / self.expected_osl.count if self.expected_osl.count else 0.0,
            foreseen_osl=self.foreseen_tokens / self.osl.count if self.osl.count else 0.0,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_remote=self.num_remote,
            num_output_tokens=self.num_output_tokens,
            queue_wait_s=self.queue_wait_s.spread(),
            ttft_s=self.ttft_s.spread(),
            itl_s=self.itl_s.spread(),
            classes=tuple(counts.signals(priority) for priority, counts in sorted(self.classes.items())),
        )


class SignalWindow:
    """Fed by the dispatcher. Time never goes back: an event with an earlier time counts for the current second."""

    def __init__(self) -> None:
        self._second: int | None = None  # of the clock
        self._began_s = 0.0
        self._now = CountedSpan()  # the current second
        self._fine: deque[CountedSpan] = deque(maxlen=SHORT_S)  # the seconds before it
        self._coarse: deque[CountedSpan] = deque(maxlen=LONG_S // COARSE_S)
        self._so_far = CountedSpan()  # seconds that are no whole stretch yet
        self._last_arrivals = 0

    def arrived(self, priority: int, num_prompt_tokens: int, ttft_slo_s: float, itl_slo_s: float, now: float) -> None:
        """It was let in."""
        stretch = self._at(now)
        stretch.num_arrivals += 1
        stretch.isl.add(num_prompt_tokens)
        counts = stretch.of_class(priority)
        counts.num_arrivals += 1
        counts.ttft_slo_s += ttft_slo_s
        counts.itl_slo_s += itl_slo_s

    def refused(self, now: float) -> None:
        """A request was rejected because of too much load."""
        self._at(now).num_refused += 1

    def placed(self, wait_s: float, expected_output_tokens: float | None, now: float) -> None:
        """It had its first placement."""
        stretch = self._at(now)
        stretch.queue_wait_s.add(wait_s)
        if expected_output_tokens is not None:
            stretch.expected_osl.add(expected_output_tokens)

    def first_token(
        self,
        priority: int,
        ttft_s: float,
        ttft_slo_s: float,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        is_remote: bool,
        now: float,
    ) -> None:
        stretch = self._at(now)
        stretch.ttft_s.add(ttft_s)
        stretch.num_prompt_tokens += num_prompt_tokens
        stretch.num_cached_tokens += num_cached_tokens
        stretch.num_remote += is_remote
        counts = stretch.of_class(priority)
        counts.num_first += 1
        counts.num_ttft_met += ttft_s <= ttft_slo_s

    def finished(
        self,
        priority: int,
        num_output_tokens: int,
        foreseen_tokens: float,
        itl_s: float,
        is_itl_met: bool,
        is_good: bool,
        now: float,
    ) -> None:
        """It ended as it should; `itl_s` is 0 for an answer of one token."""
        stretch = self._at(now)
        stretch.osl.add(num_output_tokens)
        stretch.foreseen_tokens += foreseen_tokens
        stretch.num_output_tokens += num_output_tokens
        if itl_s > 0.0:
            stretch.itl_s.add(itl_s)
        counts = stretch.of_class(priority)
        counts.num_finished += 1
        counts.num_itl_met += is_itl_met
        counts.num_good += is_good

    def failed(self, num_output_tokens: int, now: float) -> None:
        stretch = self._at(now)
        stretch.num_failed += 1
        stretch.num_output_tokens += num_output_tokens

    def left(self, num_output_tokens: int, now: float) -> None:
        """The client left."""
        stretch = self._at(now)
        stretch.num_left += 1
        stretch.num_output_tokens += num_output_tokens

    def short(self, now: float) -> WindowSignals:
        current = self._at(now)  # called first, because it may close seconds
        return self._window((*self._fine, current), now)

    def latest(self, now: float) -> WindowSignals:
        stretches = [self._at(now)]
        num_arrivals = stretches[0].num_arrivals
        for stretch in reversed(self._fine):
            if len(stretches) > LATEST_S and num_arrivals >= LATEST_ARRIVALS:
                break
            stretches.append(stretch)
            num_arrivals += stretch.num_arrivals
        return self._window(stretches, now)

    def long(self, now: float) -> WindowSignals:
        current = self._at(now)
        return self._window((*self._coarse, self._so_far, current), now)

    def _window(self, stretches: Iterable[CountedSpan], now: float) -> WindowSignals:
        whole = CountedSpan()
        for stretch in stretches:
            whole.merge(stretch)
        assert self._second is not None
        into_s = min(max(now - self._second, 0.0), 1.0)
        seen_s = whole.num_seconds + into_s
        return whole.signals(max(min(seen_s, now - self._began_s), 1e-3))

    def _at(self, now: float) -> CountedSpan:
        second = self._second
        if second is None:
            self._second, self._began_s = math.floor(now), now
        elif now >= second + 1:
            self._turn(math.floor(now))
        return self._now

    def _turn(self, second: int) -> None:
        """Closes the current second, and the seconds after it in which nothing happened."""
        assert self._second is not None
        num_passed = min(second - self._second, LONG_S + COARSE_S)
        self._second = second
        for _ in range(num_passed):
            closed, self._now = self._now, CountedSpan()
            closed.num_seconds = 1
            step = closed.num_arrivals - self._last_arrivals
            closed.steps_squared = float(step * step)
            self._last_arrivals = closed.num_arrivals
            self._fine.append(closed)
            self._so_far.merge(closed)
            if self._so_far.num_seconds == COARSE_S:
                self._coarse.append(self._so_far)
                self._so_far = CountedSpan()
