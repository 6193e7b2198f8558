"""A tensor model in virtual time: requests flow through its instances like water."""

from __future__ import annotations

from slipstream.router.status.tensor_signals import TensorSignals


class FluidTensorModel:
    """Each request takes `request_s` of an instance. `start_s`: what an instance needs to start. `fails`: none does."""

    def __init__(self, name: str, request_s: float, count: int = 1, start_s: float = 3.0) -> None:
        self.name, self.count = name, count
        self.fails = False
        self._request_s, self._start_s = request_s, start_s
        self._serving = count
        self._ready_s = 0.0
        self._now = self._began_s = 0.0
        self._waiting = self._busy_s = self._executed = self._queue_s = 0.0

    @property
    def num_waiting(self) -> int:
        return int(self._waiting + 1e-6)

    def resize(self, count: int, now: float) -> None:
        self.count, self._ready_s = count, now + self._start_s

    def begin_anew(self) -> None:
        """Another router counts from zero."""
        self._began_s = self._now
        self._busy_s = self._executed = self._queue_s = 0.0

    def run(self, until: float, per_s: float) -> None:
        step_s = 0.5
        while self._now < until:
            self._now += step_s
            if self._now >= self._ready_s:
                if self.fails:
                    self.count = self._serving
                self._serving = self.count
            self._waiting += per_s * step_s
            served = min(self._waiting, min(self._serving, self.count) * step_s / self._request_s)
            self._waiting -= served
            self._executed += served
            self._busy_s += served * self._request_s
            self._queue_s += self._waiting * step_s

    def signals(self) -> TensorSignals:
        return TensorSignals(
            self.name,
            "1",
            self.count,
            self._now < self._ready_s,
            self.num_waiting,
            self._now - self._began_s,
            self._busy_s,
            round(self._executed),
            self._queue_s,
        )
