"""When to restart what died: pure policy, with one object per member (the router, or one worker group)."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.config.cluster_config import RestartConfig

FIRST_TRIES = 3
MAX_WAIT_SHARE = 0.1  # of the time for which it had served


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart at time `at_s`, for the `number`th time in a row."""

    at_s: float
    number: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not restart: the deployment as a whole, or the member that was added to it, never came up, so the fault lies
    there."""

    reason: str


@dataclass(slots=True)
class RestartPolicy:
    """Takes deaths and times, and returns what to do.

        starting --cluster_ready--> settled
        starting: any death -> GiveUp           (trying again does not cure a bad model or configuration)
        settled:  death n in a row -> Restart after backoff_s * 2**(n-1), at most backoff_max_s, for ever;
                  if it has served, after a tenth of that time at most (but not before backoff_s): so what dies
                  again and again serves most of the time, while clients wait for it
        settled:  a member that was up for stable_s starts over with n
        added_later, moved: like settled, but FIRST_TRIES deaths before it was ever up -> GiveUp

    Times are seconds on any monotonic clock.
    """

    config: RestartConfig
    settled: bool = False
    deaths: int = 0  # in a row
    restarts: int = 0  # ever
    up_since_s: float | None = None
    is_unproven: bool = False  # whether it was added later and has never been up

    def cluster_ready(self) -> None:
        self.settled = True

    def added_later(self) -> None:
        """The member joins a deployment that already works."""
        self.settled = self.is_unproven = True

    def moved(self) -> None:
        """The member begins to serve something else, which may never come up."""
        self.added_later()
        self.deaths = 0

    def up(self, now_s: float) -> None:
        """The member has begun to serve."""
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
