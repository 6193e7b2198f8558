"""What goes wrong by itself, at any moment and by chance, in the processes of a world (`process.Chances`)."""

from __future__ import annotations

import random
from collections import Counter

from slipstream.router.protocol.messages import Credits
from tests.support.faults.clockwork import Clockwork


class Mishaps:
    """The chances, each of one event, are 0 until a world sets them, and again from `end_s` on. What happens is counted
    in `seen`."""

    def __init__(self, rng: random.Random, clock: Clockwork, seen: Counter[str], end_s: float) -> None:
        self._rng = rng
        self._clock = clock
        self._seen = seen
        self._end_s = end_s
        self.sick_row = 0.0
        self.broken_engine = 0.0
        self.lie_about_credits = 0.0
        self.lost_blocks = 0.0
        self.repeated_message = 0.0

    def _strikes(self, name: str, chance: float) -> bool:
        strikes = chance > 0 and self._clock.now < self._end_s and self._rng.random() < chance
        if strikes:
            self._seen[name] += 1
        return strikes

    def sick(self) -> bool:
        return self._strikes("sick row", self.sick_row)

    def engine_breaks(self) -> bool:
        return self._strikes("engine broken", self.broken_engine)

    def repeats(self) -> bool:
        return self._strikes("repeated message", self.repeated_message)

    def loses_blocks(self) -> bool:
        return self._strikes("lost blocks", self.lost_blocks)

    def lie(self, credits: Credits) -> Credits:
        if not self._strikes("lie", self.lie_about_credits):
            return credits
        if self._rng.random() < 0.1:
            return Credits(credits.ack_seq + 1000, 1, 1, 1)
        factor = self._rng.choice((0, 2, 10))
        return Credits(
            credits.ack_seq, credits.free_slots * factor, credits.free_pages * factor, credits.free_tokens * factor
        )
