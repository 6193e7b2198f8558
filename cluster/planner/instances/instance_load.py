"""The load of a version of a tensor model between two looks, and what other numbers of instances would make of it.

The load is in instances: how many would execute all the time if there were enough of them. It is what comes (what was
executed, and what the queue has grown by) times the seconds of an instance that a request takes. Where a queue has
grown, there are as many as would empty it within `CLEAR_S` as well, or within what a start takes if that is longer: an
instance more would come when there is nothing left for it. Meanwhile all may be busy, so the room that the target
leaves is for what comes, and helps to empty the queue. Waits are those of M/M/k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.cluster.planner.model.queueing_model import erlang_c
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.status.tensor_signals import TensorSignals

CLEAR_S = 10.0
SATURATED = 0.95
OVERLOADED = 0.5  # of what is served counts as in time while the queue grows, so that each instance more is worth more
HAIR = 1e-9


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """`steady` instances would be busy with what comes, `offered` until the queue is empty. A request takes `request_s`
    of an instance, and waited `queue_s` on average (None: none was executed). `per_s` requests come."""

    count: int
    steady: float
    offered: float
    busy: float
    request_s: float
    queue_s: float | None
    per_s: float
    num_waiting: int

    @classmethod
    def between(cls, before: TensorSignals, now: TensorSignals, start_s: float = 0.0) -> InstanceLoad | None:
        """None: no time has passed, or another router has counted from zero. An instance takes `start_s` to start."""
        span_s, busy_s = now.at_s - before.at_s, now.busy_s - before.busy_s
        num = now.num_executed - before.num_executed
        if span_s <= 0.0 or busy_s < 0.0 or num < 0:
            return None
        busy = busy_s / span_s
        request_s = busy_s / num if num else 0.0
        per_s = max(num + now.num_waiting - before.num_waiting, 0) / span_s
        is_saturated = now.num_waiting > 0 and busy >= SATURATED * now.count
        if is_saturated and not num:  # each takes longer than the span: how many there could be is not known
            steady = offered = busy + 1.0
        elif is_saturated:
            steady = per_s * request_s  # fewer than are busy, while the queue gets shorter
            offered = steady + now.num_waiting * request_s / max(CLEAR_S, start_s)
        else:
            steady = offered = busy
        queue_s = (now.queue_s - before.queue_s) / num if num else None
        return cls(now.count, steady, offered, busy, request_s, queue_s, per_s, now.num_waiting)

    def kept(self, count: int, counts: InstanceCountsConfig, attainment: float, factor: float = 1.0) -> float:
        """The share of what is to be kept with so many instances and `factor` times the load, at most 1: each busy for
        at most `target` of the time, and `attainment` of the requests wait for at most `queue_ms`."""
        steady, offered = self.steady * factor, self.offered * factor
        kept = min(count * counts.target / steady, count / offered, 1.0) if offered > 0.0 else 1.0
        if counts.queue_ms is None:
            return kept
        return min(kept, self._in_time(count, offered, counts.queue_ms / 1e3) / attainment)

    def needed(self, counts: InstanceCountsConfig, attainment: float, factor: float = 1.0) -> int:
        """The fewest instances that keep all of that; as many as there may be, if none do."""
        most = counts.max or self.count
        for count in range(counts.min, most):
            if self.kept(count, counts, attainment, factor) >= 1.0 - HAIR:
                return count
        return most

    def _in_time(self, count: int, offered: float, level_s: float) -> float:
        if offered <= 0.0:
            return 1.0
        if offered >= count:
            return OVERLOADED * count / offered
        wait_s = self.request_s / (count - offered)
        p_late = erlang_c(count, offered / count) * (math.exp(-level_s / wait_s) if wait_s > 0.0 else 0.0)
        return max(1.0 - p_late, OVERLOADED)

    def __str__(self) -> str:
        waited = "" if self.queue_s is None else f", {self.queue_s * 1e3:.0f} ms in the queue"
        return f"{self.busy:.1f} of {self.count} busy, {self.num_waiting} waiting{waited}"
