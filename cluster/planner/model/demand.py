"""What load to plan for: how much comes, where that is going, and what has piled up.

The rate is a straight line through what was seen lately, so that a ramp is met where it will be when a new worker is
up; what chance could have made of it is taken off its slope. A step that chance would not make is believed at once, and
what was before it forgotten. The mix of prompts and answers is the short window's as soon as enough came in it, and
that of its last seconds where these are of another mix: the mean of what was and what is would be planned for, else.
"""

from __future__ import annotations

import math
from collections import deque

from slipstream.cluster.planner.model.queueing_model import Demand, LatencyLevel
from slipstream.router.status.load_signals import Signals, Spread, WindowSignals

LEVEL_S = 30.0  # over which the rate is averaged
TREND_S = 120.0  # over which its slope is
MIN_POINTS, MAX_POINTS = 4, 240
MAX_GROWTH = 1.5  # of the level, by its trend
MIN_ARRIVALS = 8  # fewer say nothing about a mix
RECOVER_S = 30.0  # in which what has piled up is to be served, or longer where a change takes longer
MAX_BURSTINESS = 6.0
SIGMAS = 3.0  # of the counts in a window: further from the level is no chance
SIGMAS_OF_FEW = 4.0  # the same of a mean, where so few say how much lengths vary
LEAST_SPREAD = 0.1  # of lengths, relative: a few that happen to be the same say nothing of how the next ones vary
ALIKE = 1.5  # times as long at most


class DemandWatch:
    """Requests a second, from the signals at every look at the cluster."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=MAX_POINTS)  # the middle of a short window, its rate
        self._level = 0.0
        self._trend = 0.0
        self._at_s = self._middle_s = 0.0
        self.stepped_s = -math.inf  # when the rate was last seen to have changed at once

    def see(self, signals: Signals, now: float) -> None:
        short = signals.latest if has_shifted(signals) else signals.short
        per_s, middle_s = short.offered_per_s, now - 0.5 * short.span_s
        seen = self._seen
        burstiness = min(max(signals.long.burstiness, 1.0), MAX_BURSTINESS)
        variance = max(self._level, per_s, 1.0 / short.span_s) * burstiness / short.span_s
        if seen and abs(per_s - self.rate(0.0)) > SIGMAS * math.sqrt(variance):
            seen.clear()  # a step: what was before it is over
            self.stepped_s = now
        while seen and seen[0][0] < middle_s - TREND_S:
            seen.popleft()
        seen.append((middle_s, per_s))
        self._fit(middle_s, variance * short.span_s)
        self._at_s = now

    def _fit(self, middle_s: float, variance_s: float) -> None:
        """Least squares; a slope that chance could have made counts less (`variance_s`: of a rate over one second)."""
        latest = [(at_s, per_s) for at_s, per_s in self._seen if at_s >= middle_s - LEVEL_S]
        mean_at_s = sum(at_s for at_s, _ in latest) / len(latest)
        mean = sum(per_s for _, per_s in latest) / len(latest)
        self._trend = 0.0
        reach_s = middle_s - self._seen[0][0]
        if len(self._seen) >= MIN_POINTS and reach_s > 0.0:
            center_s = sum(at_s for at_s, _ in self._seen) / len(self._seen)
            center = sum(per_s for _, per_s in self._seen) / len(self._seen)
            squares = sum((at_s - center_s) ** 2 for at_s, _ in self._seen)
            slope = sum((at_s - center_s) * (per_s - center) for at_s, per_s in self._seen) / squares
            chance = 12.0 * variance_s / reach_s**3  # of a slope over so long
            if slope * slope > chance:
                self._trend = slope * (1.0 - chance / (slope * slope))
        self._level = max(mean + self._trend * (middle_s - mean_at_s), 0.0)
        self._middle_s = middle_s

    def rate(self, lead_s: float) -> float:
        """Requests a second in `lead_s` seconds."""
        ahead_s = self._at_s - self._middle_s + lead_s if self._seen else 0.0
        return min(max(self._level + self._trend * ahead_s, 0.0), MAX_GROWTH * self._level)

    @property
    def trend(self) -> float:
        """Requests a second, a second."""
        return self._trend


def demand_of(
    signals: Signals, per_s: float, backlog: float = 0.0, least_osl: float = 0.0, lead_s: float = 0.0
) -> Demand | None:
    """`per_s` requests a second of the mix that came lately, and `backlog` more that are to be served soon. Answers are
    of at least `least_osl` tokens. None while nothing has come at all."""
    window = mix_window(signals)
    if window is None:
        return None
    levels = tuple(
        LatencyLevel(one.num_arrivals / window.num_arrivals, one.ttft_slo_s, one.itl_slo_s)
        for one in window.classes
        if one.num_arrivals
    )
    return Demand(
        per_s + backlog / max(RECOVER_S, lead_s),
        window.isl.points,
        max(answer_tokens(signals), least_osl),
        levels,
        signals.short.cached_share if signals.short.num_prompt_tokens else signals.long.cached_share,
        min(max(signals.long.burstiness, 1.0), MAX_BURSTINESS),
        signals.local_prefill_max_tokens,
    )


def has_shifted(signals: Signals) -> bool:
    """Whether prompts of the last seconds are so unlike those before them in the short window that it matters, and is
    no chance: Welch's test."""
    latest, short = signals.latest.isl, signals.short.isl
    num_before = short.count - latest.count
    if latest.count < MIN_ARRIVALS or num_before < 2:
        return False
    before = max(short.count * short.mean - latest.count * latest.mean, 0.0) / num_before
    squares = short.count * _square(short) - latest.count * _square(latest)
    variance_before = max(squares / num_before - before * before, (LEAST_SPREAD * before) ** 2)
    variance = max(latest.cv2, LEAST_SPREAD**2) * latest.mean**2
    chance = math.sqrt(variance / latest.count + variance_before / num_before)
    matters = max(latest.mean, before) > ALIKE * min(latest.mean, before)
    return matters and abs(latest.mean - before) > SIGMAS_OF_FEW * chance


def is_answered(signals: Signals) -> bool:
    """Whether answers that ended lately were about as long as those to what comes now are expected to be. If not, they
    are answers to what came before, and how they did says nothing of how these will do. A few may be of any length."""
    ended, osl = signals.short.osl, answer_tokens(signals)
    return ended.count < MIN_ARRIVALS or osl / ALIKE <= ended.mean <= osl * ALIKE


def mix_window(signals: Signals) -> WindowSignals | None:
    """The window that says what prompts are like."""
    if has_shifted(signals):
        return signals.latest
    if signals.short.num_arrivals >= MIN_ARRIVALS:
        return signals.short
    return signals.long if signals.long.num_arrivals else None


def answer_tokens(signals: Signals) -> float:
    """What answers to the requests that come now will be like. Those that have finished were begun long ago, so the
    router's forecasts count, corrected by what the finished ones were beside the forecasts made for them: by as much as
    both the short and the long window say, as forecasts learn by themselves, and chance is in the few of the short."""
    short, long = signals.short, signals.long
    latest_osl = signals.latest.expected_osl if has_shifted(signals) else 0.0
    forecast = latest_osl or short.expected_osl or long.expected_osl
    if not forecast:
        return max(long.osl.mean, 1.0)
    return max(forecast * _between(_surprise(short), _surprise(long)), 1.0)


def _surprise(window: WindowSignals) -> float | None:
    """So many times as long as forecast were the answers that ended; None where few did."""
    if window.osl.count < MIN_ARRIVALS or not window.foreseen_osl:
        return None
    return min(max(window.osl.mean / window.foreseen_osl, 0.5), 2.0)


def _between(one: float | None, other: float | None) -> float:
    """The factor that is nearer to 1, and 1 itself where they lie on both sides of it. An unknown one says nothing."""
    if one is None or other is None:
        return (one if other is None else other) or 1.0
    return max(min(one, other), 1.0) if one > 1.0 else min(max(one, other), 1.0)


def backlog_of(signals: Signals) -> float:
    """Requests beyond those that a cluster which keeps up has: waiting here, or with the prefill workers."""
    pending = sum(worker.num_pending for worker in signals.workers)
    return max(signals.num_waiting + pending - 2.0 * max(len(signals.workers), 1), 0.0)


def _square(values: Spread) -> float:
    """The mean of the squares of some values."""
    return (1.0 + values.cv2) * values.mean**2


def local_share_of(signals: Signals) -> float | None:
    """Of the prompts, computed on decode workers lately; None where too few say."""
    num_first = signals.short.ttft_s.count
    return 1.0 - signals.short.num_remote / num_first if num_first >= MIN_ARRIVALS else None
