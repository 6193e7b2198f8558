"""Cables between the hosts of a world, some of which are cut for a while, and what must be true afterwards."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

from slipstream.router.registry.broken_links import RETRY_MAX_S, TRIAL_S
from tests.support.faults.clockwork import Clockwork
from tests.support.faults.page_wire import PageWire

LONGEST_CUT_S = 30.0
REOPENED_S = RETRY_MAX_S + TRIAL_S + 1.0  # so long after the last cable is whole any link may be tried


class Cables:
    """Of a world whose workers are on `num_hosts` hosts. All of it comes from a seed of its own, so that the other
    worlds stay as they are."""

    def __init__(self, clock: Clockwork, wire: PageWire, seen: Counter[str], rng: random.Random) -> None:
        self._clock, self._wire, self._seen = clock, wire, seen
        self._rng = rng
        self._num_down: Counter[tuple[str, str]] = Counter()
        self._hosts = [f"host-{number}" for number in range(rng.choice((2, 2, 3, 5)))]
        self.healed_s = 0.0  # when the last one is whole again

    def host(self, number: int) -> str:
        """Of the n-th worker."""
        return self._hosts[number % len(self._hosts)]

    def plan(self, end_s: float) -> None:
        """Cuts that begin before `end_s`. Some outlast all other faults."""
        pairs = list(combinations(self._hosts, 2))
        for _ in range(self._rng.choice((1, 3, 8))):
            pair = self._rng.choice(pairs)
            from_s = self._rng.random() ** 2 * end_s
            to_s = from_s + self._rng.choice((0.5, 3.0, LONGEST_CUT_S, LONGEST_CUT_S)) * self._rng.random()
            self.healed_s = max(self.healed_s, to_s)
            self._clock.at(from_s, lambda pair=pair: self._cut(pair))
            self._clock.at(to_s, lambda pair=pair: self._heal(pair))

    def _cut(self, pair: tuple[str, str]) -> None:
        self._seen["cut cable"] += 1
        self._num_down[pair] += 1
        self._wire.cut_cable(*pair)

    def _heal(self, pair: tuple[str, str]) -> None:
        self._num_down[pair] -= 1
        if not self._num_down[pair]:
            self._wire.heal_cable(*pair)
