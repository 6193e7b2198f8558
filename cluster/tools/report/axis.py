"""Axes: which values get a tick, and where a value is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

NUM_TICKS = 6
MIN_LOG_TICKS = 3  # with fewer, even steps say more


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps the values `low` .. `high` to the positions `start` .. `end`. With `log`, `low` is above 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: list[float], start: float, end: float, log: bool = False, from_zero: bool = False) -> Axis:
        """An axis that shows all values, and also 0 if it is `from_zero`."""
        known = [value for value in values if math.isfinite(value) and (not log or value > 0)]
        if log:
            low, high = (min(known), max(known)) if known else (1.0, 10.0)
            if low == high:
                low, high = low / 2, high * 2
            return cls(low, high, start, end, True)
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if from_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = (low, low + 1.0) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
        if from_zero:  # the axis ends at its last tick, so that no line touches the frame
            step = tick_step(high - low)
            low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return cls(low, high, start, end)

    def place(self, value: float) -> float:
        if self.log:
            if value <= 0:
                return self.start
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        ticks = log_ticks(self.low, self.high) if self.log else []
        return ticks if len(ticks) >= MIN_LOG_TICKS else linear_ticks(self.low, self.high)


def tick_step(span: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, so that there are about NUM_TICKS ticks."""
    if not 0 < span < math.inf:
        return 1.0
    rough = span / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in (1, 2, 5) if step * power >= rough * 0.999), 10 * power)


def linear_ticks(low: float, high: float) -> list[float]:
    step = tick_step(high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; if there are few, also 2 and 5 times these."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if len(powers) > 4 else (1, 2, 5)
    ticks = [step * 10.0**power for power in powers for step in steps]
    stride = 1 + len(powers) // (2 * NUM_TICKS) if len(steps) == 1 else 1
    return [tick for tick in ticks[::stride] if low * 0.999 <= tick <= high * 1.001]


def tick_label(value: float) -> str:
    """A short label: 0.05, 250, 1.5k, 20M."""
    size = abs(value)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * 0.9999:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}" if size > 1e-12 else "0"
