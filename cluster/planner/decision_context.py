"""One decision in the making: what it is about, and what the options that were looked at would do."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.change_history import ChangeHistory
from slipstream.cluster.planner.forecast import Forecast
from slipstream.cluster.planner.model.queueing_model import Outlook
from slipstream.cluster.planner.planner_decision import Alternative
from slipstream.cluster.planner.pool_options import PoolChange, PoolLimits, Pools
from slipstream.cluster.planner.pool_prices import NO_PRICES, PoolPrices
from slipstream.router.status.load_signals import Signals

MAX_ALTERNATIVES = 12


class DecisionContext:
    """One decision in the making: what it is about, and the options that were looked at."""

    def __init__(
        self,
        signals: Signals,
        fleet: FleetState,
        now: float,
        limits: PoolLimits,
        pools: Pools,
        grow_s: float,
        prices: PoolPrices = NO_PRICES,
    ) -> None:
        """`grow_s`: until one more worker could be there."""
        self.signals, self.fleet, self.now, self.limits, self.pools = signals, fleet, now, limits, pools
        self.grow_s, self.prices = grow_s, prices
        self.is_swap = False  # further workers come from another model
        self.waits = True  # with a change that takes an earlier one back
        self.forecast: Forecast | None = None
        self.predict: Callable[[Pools, float], Outlook]
        self.seen: tuple[tuple[str, float], ...] = ()
        self._known: dict[tuple[Pools, float], Outlook] = {}
        self._noted: dict[Pools, tuple[Outlook, float, str]] = {}

    def outlook(self, pools: Pools, factor: float = 1.0) -> Outlook:
        """What the pools would make of the load, or of so many times as much."""
        known = self._known.get((pools, factor))
        if known is None:
            known = self._known[pools, factor] = self.predict(pools, factor)
        return known

    def cost(self, pools: Pools, history: ChangeHistory) -> float:
        """In workers, or by their prices: those that run, and those that the change keeps from running, over the
        horizon."""
        cost = self.prices.size(pools) + history.busy_share(PoolChange.between(self.pools, pools), self.grow_s)
        self._noted[pools] = (self.outlook(pools), cost, "")
        return cost

    def note(self, pools: Pools, predicted: Outlook, rejected: str) -> None:
        cost = self._noted[pools][1] if pools in self._noted else self.prices.size(pools)
        self._noted[pools] = (predicted, cost, rejected)

    def reject(self, pools: Pools, why: str) -> None:
        if pools in self._noted:
            predicted, cost, _ = self._noted[pools]
            self._noted[pools] = (predicted, cost, why)

    def alternatives(self) -> tuple[Alternative, ...]:
        """The best of what was looked at, the pools as they are among them."""
        rows = dict(self._noted)
        if self._known:
            rows[self.pools] = (self.outlook(self.pools), self.prices.size(self.pools), "as it is")
        best = sorted(
            rows, key=lambda pools: (rows[pools][2] != "", -round(rows[pools][0].attainment, 2), rows[pools][1])
        )
        return tuple(
            _alternative(pools, *rows[pools], self.prices.per_hour(pools)) for pools in best[:MAX_ALTERNATIVES]
        )


def _alternative(
    pools: Pools, predicted: Outlook, cost: float, rejected: str, price_per_hour: float | None
) -> Alternative:
    return Alternative(
        pools.num_prefill,
        pools.num_decode,
        round(predicted.attainment, 4),
        round(predicted.goodput_per_s, 4),
        predicted.ttft_s,
        predicted.itl_s,
        predicted.prefill_load,
        predicted.decode_load,
        round(cost, 3),
        rejected,
        price_per_hour,
    )
