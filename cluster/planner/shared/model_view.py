"""One model at one look of the planner: what more or fewer workers would make of its requests."""

from __future__ import annotations

import math

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import CHANGING, FleetState
from slipstream.cluster.planner.decision_context import DecisionContext
from slipstream.cluster.planner.model.running_answers import URGENT
from slipstream.cluster.planner.pending_starts import PendingStarts
from slipstream.cluster.planner.pool_growth import ROOM
from slipstream.cluster.planner.pool_options import Pools, leaver
from slipstream.cluster.planner.shared.model_share import ModelShare
from slipstream.cluster.planner.slo_planner import SloPlanner
from slipstream.router.protocol.messages import Role
from slipstream.router.status.load_signals import Signals

FEW_SPLITS = 10  # prefill workers, up to which all splits are looked at
MULTIPLES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)  # of the load
ENOUGH = 1.25 * ROOM  # of the margin: as much more load as what a model gets has to bear


class ModelView:
    """Numbers of workers stand for their best split into roles."""

    def __init__(
        self,
        share: ModelShare,
        planner: SloPlanner,
        config: PlannerConfig,
        signals: Signals,
        fleet: FleetState,
        starts: PendingStarts,
        now: float,
    ) -> None:
        """`starts` are those of all models: workers that have served one come to another in seconds."""
        self.share, self.planner, self.signals, self.now = share, planner, signals, now
        self._config = config
        self.whole_fleet = fleet
        self.fleet = without_starting(fleet, starts)
        self._coming = starts.coming(fleet.members, now, planner.history.start_bound_s)
        self.context: DecisionContext = planner.look(signals, self.fleet, now)
        self.context.grow_s = planner.swap_s
        self.forecast = planner.forecast(self.context)
        self.gone: set[str] = set()  # workers that it gives away at this look
        self.is_wanted_elsewhere = False  # requests of another model wait, and have no worker at all
        self._kept: dict[tuple[int, float], float] = {}
        self._enough_factor: float | None = None

    @property
    def name(self) -> str:
        return self.share.name

    @property
    def total(self) -> int:
        return self.context.pools.total

    @property
    def num_coming(self) -> int:
        """Workers that start for the first time."""
        return len(self._coming)

    @property
    def is_waking(self) -> bool:
        """Requests wait, and no decode worker is there or on its way."""
        has_decode = self.fleet.num_decode > 0 or any(one.role == "decode" for one in self._coming)
        return not has_decode and self.signals.num_waiting > 0

    @property
    def may_start(self) -> bool:
        """What is seen is of the workers that have been started, and no start has failed lately."""
        return self.planner.history.may_add(self.now) and not self.planner.history.has_just_started(self.now)

    @property
    def is_idle(self) -> bool:
        """There is no request, and has not been for a while: where requests of another model have no worker at all, for
        as long as a swap takes. To wait longer than that would cost them more than a swap back would cost this one."""
        quiet_s, idle_s = self.planner.quiet_s(self.now), min(self._config.idle_s, self._config.horizon_s)
        if self.is_wanted_elsewhere and not (self.signals.num_waiting or self.signals.num_running):
            return quiet_s >= min(idle_s, self.planner.swap_s)
        return quiet_s >= idle_s

    @property
    def is_short(self) -> bool:
        """The levels are not kept, or not with room to spare."""
        if self.forecast is None or not self.total:
            return False
        with_room = self.context.outlook(self.context.pools, 1.0 + ROOM * self._config.margin)
        return self._is_late or with_room.attainment < self._config.target_attainment

    @property
    def is_grave(self) -> bool:
        """Less than half of the target is kept: what was taken back lately is no reason to wait."""
        return self.is_short and self.kept(self.total) < URGENT * self._config.target_attainment

    @property
    def _is_late(self) -> bool:
        return self.forecast is not None and self.forecast.running.is_late(self._config.target_attainment)

    @property
    def is_steady(self) -> bool:
        """What is seen of it is of the workers that it has, and nothing there is about to change."""
        if self.fleet.is_held or self.is_waking:
            return False
        return self.is_idle or not (self.fleet.is_changing or self.planner.is_settling(self.now))

    def served(self, number: int) -> float:
        """What counts of so many workers: the share of its requests that they would serve in time, with room for more,
        of the share that is to be."""
        target = self._config.target_attainment
        served = self.kept(number, self._enough)
        if self.forecast is not None and not self._is_late:
            lately = self.planner.kept_lately(self.context, self.forecast)
            if number >= self.total and lately >= target:
                served = max(served, lately)
        return min(served, target) / target

    def kept(self, number: int, factor: float = 1.0) -> float:
        """The share of its requests that keep the levels with so many workers, and so many times the load. Where most
        of the answers that run now are late, that is what the present workers keep, and fewer would."""
        known = self._kept.get((number, factor))
        if known is None:
            known = self._kept[number, factor] = self._predicted(number, factor)
        return known

    def _predicted(self, number: int, factor: float) -> float:
        if self.forecast is None:  # never measured: it needs what it has
            return 1.0 if number >= self.total or self.is_idle else 0.0
        pools = self.split(number, factor)
        attainment = self.context.outlook(pools, factor).attainment if pools is not None else 0.0
        if self.forecast.planned.per_s <= 0.0:
            attainment = 1.0
        if number <= self.total and self._is_late:
            attainment = min(attainment, self.forecast.running.in_time)
        return attainment

    def bears(self, number: int) -> float:
        """So many times the load that is planned for keeps the levels with so many workers; infinity without load."""
        if self.forecast is None or self.forecast.planned.per_s <= 0.0:
            return math.inf
        bears = 0.0
        for factor in MULTIPLES:
            if self.kept(number, factor) < self._config.target_attainment:
                break
            bears = factor
        return bears

    @property
    def _enough(self) -> float:
        """So many times the load has to be bearable for the workers to be enough."""
        if self._enough_factor is None:
            ahead = self.planner.ahead(self.forecast, self.planner.swap_s) if self.forecast is not None else 1.0
            self._enough_factor = (1.0 + ENOUGH * self._config.margin) * ahead
        return self._enough_factor

    def best_split(self, number: int) -> Pools:
        pools = self.split(number, self._enough) if self.forecast is not None else None
        return pools if pools is not None else Pools(0, number)

    def split(self, number: int, factor: float) -> Pools | None:
        """The best split of so many workers that the configuration allows."""
        config, best, best_rank = self._config, None, (-1.0, 0.0)
        most = min(number - 1, config.max_prefill if config.max_prefill is not None else number)
        step = max(most // FEW_SPLITS, 1)
        for prefill in range(config.min_prefill, most + 1, step):
            pools = Pools(prefill, number - prefill)
            if config.max_decode is not None and pools.num_decode > config.max_decode:
                continue
            predicted = self.context.outlook(pools, factor)
            rank = (round(predicted.attainment, 3), -predicted.load)
            if rank > best_rank:
                best, best_rank = pools, rank
        return best

    def spare(self) -> int:
        """Workers that it could do without: the others keep the levels, with `margin` more load."""
        if self.is_short:
            return 0
        least = self.share.min_workers if self.is_idle else max(self.share.min_workers, 1)
        spare = 0
        while self.total - spare > least:
            left = self.total - spare - 1
            bears = left == 0 or self.kept(left, 1.0 + self._config.margin) >= self._config.target_attainment
            if not (bears or self.is_idle):
                break
            spare += 1
        return spare

    def left_after(self, number: int) -> Pools | None:
        """The pools that it has when so many workers are gone, the cheapest to lose; None if they cannot be spared."""
        pools = self.context.pools
        for _ in range(number):
            ways = [Pools(pools.num_prefill - 1, pools.num_decode), Pools(pools.num_prefill, pools.num_decode - 1)]
            ways = [way for way in ways if min(way.num_prefill, way.num_decode) >= 0]
            ways = [way for way in ways if way.num_decode > 0 or way.total == 0]
            ways = [way for way in ways if way.num_prefill >= self._config.min_prefill or way.total == 0]
            if not ways:
                return None
            pools = max(ways, key=self._rank)
        return pools

    def _rank(self, pools: Pools) -> tuple[float, float]:
        if self.forecast is None or not pools.total:
            return (0.0, -float(pools.num_prefill))
        predicted = self.context.outlook(pools)
        return (round(predicted.attainment, 3), -predicted.load)

    @property
    def left(self) -> int:
        """Workers that it has not given away at this look."""
        return self.total - len(self.gone)

    def next_to_go(self) -> tuple[str, Role] | None:
        """The worker that it can best spare, beside those that are gone; None if what runs there has no room."""
        before, after = self.left_after(len(self.gone)), self.left_after(len(self.gone) + 1)
        if before is None or after is None:
            return None
        role: Role = "prefill" if after.num_prefill < before.num_prefill else "decode"
        if self.left == 1 and not self.is_idle:  # its requests wait, or end, where they are
            members = [one for one in self.fleet.members if not one.is_leaving and one.name not in self.gone]
            return (members[0].name, members[0].role) if members else None
        name = leaver(role, self.fleet, self.signals, self.gone)
        return None if name is None else (name, role)


def without_starting(fleet: FleetState, starts: PendingStarts) -> FleetState:
    """Without the workers that start for the first time: that takes a minute, in which roles and models of the others
    can change many times. How many there may be is decided by the budget, so no number is the most."""
    members = tuple(one for one in fleet.members if starts.has_served(one.name))
    staying = [one for one in members if not one.is_leaving]
    return FleetState(
        members,
        sum(one.role == "prefill" for one in staying),
        sum(one.role == "decode" for one in staying),
        None,
        any(one.state in CHANGING for one in members),
        fleet.is_held,
    )
