"""When to start the next driver after one that has died: pure policy."""

from __future__ import annotations

from dataclasses import dataclass

MAX_FRUITLESS = 3  # starts in a row after which no cluster was up
STABLE_S = 60.0  # for which a driver has to serve until its death has nothing to do with the one before
MAX_PAUSE_S = 30.0


@dataclass(slots=True)
class DriverRestarts:
    """Counts deaths, and returns how long to wait.

    never up, the first one                    -> None: the fault lies in what it was to serve
    never up, `MAX_FRUITLESS` times in a row   -> None: starting again does not help
    else, death n in a row                     -> at once, then 1, 2, 4 .. `MAX_PAUSE_S` seconds
    """

    has_served: bool = False  # any of them
    num_in_row: int = 0
    num_fruitless: int = 0

    def died(self, served_s: float | None) -> float | None:
        """A driver has died by no wish of ours, after its cluster was up for so long; None: it never was. Returns the
        seconds until the next one is to be started; None: never."""
        if served_s is None:
            self.num_fruitless += 1
            if not self.has_served or self.num_fruitless >= MAX_FRUITLESS:
                return None
        else:
            self.has_served, self.num_fruitless = True, 0
            if served_s >= STABLE_S:
                self.num_in_row = 0
        self.num_in_row += 1
        return 0.0 if self.num_in_row == 1 else min(2.0 ** min(self.num_in_row - 2, 30), MAX_PAUSE_S)
