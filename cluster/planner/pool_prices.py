"""What the workers of a model cost, and what decides between pools that keep the levels."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.planner.pool_options import Pools


@dataclass(frozen=True, slots=True)
class PoolPrices:
    """Of a worker of each role, an hour, in any currency; None: not known. `is_objective`: the pools that cost least
    are wanted, not those with the fewest workers."""

    prefill: float | None = None
    decode: float | None = None
    is_objective: bool = False

    def per_hour(self, pools: Pools) -> float | None:
        """Of all workers of the pools. None if the price of some of them is not known."""
        price = 0.0
        for number, each in ((pools.num_prefill, self.prefill), (pools.num_decode, self.decode)):
            if number and each is None:
                return None
            price += number * (each or 0.0)
        return price

    def per_million(self, pools: Pools, goodput_per_s: float, output_tokens: float) -> float | None:
        """Of a million output tokens of requests that keep the levels: `goodput_per_s` of them with so many tokens
        each."""
        price, tokens_per_s = self.per_hour(pools), goodput_per_s * output_tokens
        return None if price is None or tokens_per_s <= 0.0 else price / (3600.0 * tokens_per_s) * 1e6

    def size(self, pools: Pools) -> float:
        """What is to be as small as possible, in decode workers where those have a price."""
        price = self.per_hour(pools) if self.is_objective else None
        return float(pools.total) if price is None else price / (self.decode or 1.0)


NO_PRICES = PoolPrices()
