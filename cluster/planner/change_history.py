"""What a planner remembers of its own changes: how long they take, whether they came to anything, and whether they were
taken back."""

from __future__ import annotations

from collections import deque

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.pool_options import PoolChange, Pools

STUCK = 3.0  # times as long as a start takes, and a change does not count as one any more
LEAST_STUCK_S = 120.0
MAX_DOUBLINGS = 6
MAX_DOUBLINGS_QUIET = 3
LEARN = 0.3  # of a measured duration is taken up
MEMORY = 8  # changes
REMEMBERED = 4.0  # horizons, for changes that were taken back


class ChangeHistory:
    """`start_s`, `switch_s` and `swap_s`: what a new worker, a new role and a worker of another model take, as seen so
    far. `settles_s`: from then on what
    is seen of the cluster is of it as it is now. `horizon_s`: over which a change has to pay; None: the configured
    one."""

    def __init__(self, config: PlannerConfig, horizon_s: float | None = None) -> None:
        self._config = config
        self._horizon_s = config.horizon_s if horizon_s is None else horizon_s
        self.start_s, self.switch_s, self.swap_s = config.start_s, config.switch_s, config.swap_s
        self.settles_s = float("-inf")
        self.changed_s = float("-inf")
        self._begun: tuple[float, PoolChange, Pools] | None = None  # the change under way: since when, what, from what
        self._is_swap = False  # the workers that it adds come from another model
        self._changing_since_s: float | None = None
        self._ready_before = 0
        self._reversals: deque[float] = deque(maxlen=MAX_DOUBLINGS)  # when a change was taken back
        self._made: deque[tuple[float, Pools, Pools]] = deque(maxlen=MEMORY)
        self._failed_starts = 0
        self._started_s = float("-inf")
        self._add_again_s = float("-inf")
        self._num_refused = 0  # changes that the cluster would not make
        self._change_again_s = float("-inf")

    def see(self, fleet: FleetState, now: float) -> None:
        """Called at every look. Follows a change that is under way to its end."""
        if fleet.is_changing:
            if self._changing_since_s is None:
                self._changing_since_s = now
            return
        ended = self._changing_since_s is not None
        self._changing_since_s = None
        if self._begun is not None and now > self._begun[0]:
            began_s, move, before = self._begun
            self._begun = None
            ended = True
            if Pools(fleet.num_prefill, fleet.num_decode) == before and not move.num_added:
                self._num_refused += 1
                self._change_again_s = now + self._config.settle_s * 2.0 ** min(self._num_refused, MAX_DOUBLINGS)
            else:
                self._num_refused = 0
                self._learn(move, now - began_s, fleet, now)
        if ended:
            self.changed_s = now
            self.settles_s = max(self.settles_s, now + self._config.settle_s)

    def _learn(self, move: PoolChange, took_s: float, fleet: FleetState, now: float) -> None:
        if move.num_added:
            num_ready = sum(one.state == "ready" for one in fleet.members)
            if num_ready < self._ready_before + move.num_added:
                self.start_failed(now)
                return
            self._failed_starts = 0
            if self._is_swap:
                self.swap_s += LEARN * (took_s - self.swap_s)
            else:
                self.start_s += LEARN * (took_s - self.start_s)
        elif move.num_switched:
            self.switch_s += LEARN * (took_s - self.switch_s)

    @property
    def start_bound_s(self) -> float:
        """A start that takes longer may never end."""
        return max(STUCK * self.start_s, LEAST_STUCK_S)

    def started(self, took_s: float, now: float) -> None:
        """A worker that was no change of this planner serves for the first time."""
        self._failed_starts = 0
        if took_s <= self.start_bound_s:
            self.start_s += LEARN * (took_s - self.start_s)
        self._started_s = now
        self.look_again(now)

    def start_failed(self, now: float) -> None:
        """Further workers are asked for ever more rarely."""
        self._failed_starts += 1
        self._add_again_s = now + self.start_s * 2.0 ** min(self._failed_starts, MAX_DOUBLINGS)

    def is_stuck(self, now: float) -> bool:
        """A change has been under way for so long that it may never end: a worker that dies whenever it starts."""
        since_s = self._changing_since_s
        if since_s is None or now - since_s < self.start_bound_s:
            return False
        if self._begun is not None:
            move, self._begun = self._begun[1], None
            if move.num_added:
                self.start_failed(now)
        return True

    def change(self, before: Pools, after: Pools, fleet: FleetState, now: float, *, is_swap: bool = False) -> None:
        """A change was decided. `is_swap`: workers that it adds come from another model."""
        self._is_swap = is_swap
        if self._takes_back(before, after, now):
            self._reversals.append(now)
        self._made.append((now, before, after))
        self._begun = (now, PoolChange.between(before, after), before)
        self._ready_before = sum(one.state == "ready" for one in fleet.members)
        self.changed_s = now
        self.settles_s = now + self._config.settle_s
        self._changing_since_s = now

    def look_again(self, now: float) -> None:
        """Lets what is there settle once more, before it is judged."""
        self.settles_s = max(self.settles_s, now + self._config.settle_s)

    def may_add(self, now: float) -> bool:
        return now >= self._add_again_s

    def has_just_started(self, now: float) -> bool:
        """What is seen is not of the worker yet that another planner asked for."""
        return now < self._started_s + self._config.settle_s

    def may_change(self, before: Pools, after: Pools, now: float) -> bool:
        """A change that takes an earlier one back waits, twice as long each time that this has happened lately, but no
        longer than the horizon: a load that flips again and again is no reason to leave things as they are for good."""
        if now < self._change_again_s:
            return False
        return not self._takes_back(before, after, now) or now >= self._wait_until_s(now)

    def quiet_s(self, now: float) -> float:
        """How long fewer workers have to have been enough: longer where that has been wrong lately."""
        return float(self._config.horizon_s * 2.0 ** min(self._num_reversals(now), MAX_DOUBLINGS_QUIET))

    def why_not(self, now: float) -> str:
        if now < self._change_again_s:
            return f"the cluster did not make the last change; again in {self._change_again_s - now:.0f} s"
        return (
            f"changes have been taken back {self._num_reversals(now)} times lately: "
            f"{max(self._wait_until_s(now) - now, 0.0):.0f} s more"
        )

    def busy_share(self, move: PoolChange, grow_s: float) -> float:
        """Workers that a change keeps from working, over the horizon. A new worker takes `grow_s`."""
        return (move.num_switched * self.switch_s + move.num_added * grow_s) / self._config.horizon_s

    def _wait_until_s(self, now: float) -> float:
        num = self._num_reversals(now)
        return self.changed_s + (min(self._config.settle_s * 2.0**num, self._horizon_s) if num else 0.0)

    def _num_reversals(self, now: float) -> int:
        kept_s = REMEMBERED * self._horizon_s * 2.0 ** min(max(len(self._reversals) - 1, 0), MAX_DOUBLINGS_QUIET)
        return sum(now - at_s < kept_s for at_s in self._reversals)

    def _takes_back(self, before: Pools, after: Pools, now: float) -> bool:
        """It goes against a change that was made not long ago."""
        reach_s = (REMEMBERED if self._reversals else 1.0) * self._horizon_s
        step = (after.num_prefill - before.num_prefill, after.num_decode - before.num_decode)
        for made_s, one, other in self._made:
            made = (other.num_prefill - one.num_prefill, other.num_decode - one.num_decode)
            if now - made_s < reach_s and step[0] * made[0] + step[1] * made[1] < 0:
                return True
        return False
