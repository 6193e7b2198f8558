"""When a dead instance is started again."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 30.0
MAX_DOUBLINGS = 10  # more than it takes to reach that
GOOD_AFTER_S = 60.0  # an instance that has served for so long has no failures to its name


@dataclass(slots=True)
class RestartBackoff:
    """Of one instance. The pause doubles with each death that follows another one soon."""

    num_deaths: int = 0
    _serves_since: float | None = None

    def served(self, now: float) -> None:
        """The instance serves from now on."""
        self._serves_since = now

    def died(self, now: float, *, was_useful: bool) -> float:
        """Returns when to start it again. `was_useful`: it has executed something since its start, so that it is no
        instance that cannot run."""
        if was_useful or (self._serves_since is not None and now - self._serves_since >= GOOD_AFTER_S):
            self.num_deaths = 0
        self._serves_since = None
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.num_deaths, MAX_DOUBLINGS))
        self.num_deaths += 1
        return now + pause_s
