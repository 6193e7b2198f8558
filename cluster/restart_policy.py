"""When to start again what died: pure policy, one object a member (the router, or one worker group)."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.config import RestartConfig

FIRST_TRIES = 3
MAX_WAIT_SHARE = 0.25  # of the time for which it had served


@dataclass(frozen=True, slots=True)
class Restart:
    """Start again at time `at_s`, for the `number`th time in a row."""

    at_s: float
    number: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start again: the deployment as a whole, or a member that was added to it, never came up, so the mistake
    is in it."""

    reason: str


@dataclass(slots=True)
class RestartPolicy:
    """Told of deaths and times, says what to do.

        starting --cluster_ready--> settled
        starting: any death -> GiveUp           (a bad model or config is not cured by trying again)
        settled:  death n in a row -> Restart after backoff_s * 2**(n-1), at most backoff_max_s, for ever;
                  after having served, no later than a quarter of the time for which it had (but for backoff_s):
                  what dies again and again is down for a fifth of the time then, while clients wait for it
        settled:  a member that was up for stable_s has a clean slate
        added_later: as settled, but death FIRST_TRIES before it was ever up -> GiveUp

    Times are seconds on any monotonic clock.
    """

    config: RestartConfig
    settled: bool = False
    deaths: int = 0  # in a row
    restarts: int = 0  # ever
    up_since_s: float | None = None
    is_unproven: bool = False  # it was added later and has never been up

    def cluster_ready(self) -> None:
        self.settled = True

    def added_later(self) -> None:
        """The member joins a deployment that works."""
        self.settled = self.is_unproven = True

    def up(self, now_s: float) -> None:
        """The member serves."""
        self.is_unproven = False
        if self.up_since_s is None:
            self.up_since_s = now_s

    def died(self, now_s: float, reason: str) -> Restart | GiveUp:
        up_since_s, self.up_since_s = self.up_since_s, None
        if not self.settled:
            return GiveUp(reason)
        if up_since_s is not None and now_s - up_since_s >= self.config.stable_s:
            self.deaths = 0
        self.deaths += 1
        if self.is_unproven and self.deaths >= FIRST_TRIES:
            return GiveUp(f"given up after {FIRST_TRIES} tries: {reason}")
        self.restarts += 1
        doublings = min(self.deaths - 1, 30)  # 2.0 ** 2000 would overflow
        wait_s = min(self.config.backoff_s * 2.0**doublings, self.config.backoff_max_s)
        if up_since_s is not None:
            wait_s = min(wait_s, max((now_s - up_since_s) * MAX_WAIT_SHARE, self.config.backoff_s))
        return Restart(now_s + wait_s, self.deaths)
