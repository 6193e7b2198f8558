"""Gives a version of a tensor model one share of the requests after the other, and judges each. Sans-IO.

    promote 2 --split 95:5--> step 1 --enough seen, as good as the old--> step 2 --> ... --> all requests
                                |                                           |
                                '---- worse, or it does not serve any more -'--> all requests to the old one

A step lasts `canary_s` seconds at least, and until `min_requests` requests have ended on the new version. What is
judged are the requests of that step alone. A version that does not serve may only be loading at a router that has just
begun: it is waited for, and the others have its requests meanwhile. Where a router is followed by another one, the step
begins anew: what waited for that router says nothing about the versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from slipstream.cluster.fleet.update_plan import Phase, UpdateEvent, UpdateOptions, VersionLoad
from slipstream.cluster.update.verdict import CONFIDENCE, is_counted_anew, is_slower, more_errors, since, slower_text
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus, TensorVersionStatus

ALL = 100.0
GONE_S = 60.0  # after this long, a version that does not serve is not waited for any more
SLACK_S = 0.001  # and slower by at least this


@dataclass(slots=True)
class TensorRollout:
    """From version `old` to `new`. Times are `time.monotonic()`."""

    old: str
    new: str
    options: UpdateOptions
    phase: Phase = "starting"
    events: list[UpdateEvent] = field(default_factory=list)
    _num_begun: int = 0
    _begun_s: float = 0.0
    _gone_s: float | None = None  # since when the new version does not serve
    _then: tuple[VersionLoad, VersionLoad] = field(default_factory=lambda: (VersionLoad(), VersionLoad()))
    _seen: tuple[VersionLoad, VersionLoad] = field(default_factory=lambda: (VersionLoad(), VersionLoad()))

    @property
    def is_over(self) -> bool:
        return self.phase in ("done", "rolled_back", "cut_short")

    @property
    def step(self) -> str:
        return f"{self._num_begun} of {len(self.options.shares)}"

    def look(self, now_s: float, status: TensorVersionsStatus) -> dict[str, float] | None:
        """The split to set, if another one is needed now."""
        by_version = {one.version: load_of(one) for one in status.versions}
        if self.new not in by_version:
            return self._wait_for_version(now_s)
        self._gone_s = None
        loads = by_version[self.new], by_version.get(self.old, VersionLoad())
        before, self._seen = self._seen, loads
        if not self._num_begun:
            return self._begin_step(now_s, loads)
        if any(map(is_counted_anew, loads, before)):
            self._begun_s, self._then = now_s, loads
            return None
        new, old = (since(now, then) for now, then in zip(loads, self._then, strict=True))
        if now_s - self._begun_s < self.options.canary_s or new.num_ended < self.options.min_requests:
            return None
        bad = worse(new, old, self.options.tolerance_percent / 100)
        if bad is not None:
            return self._roll_back(now_s, f"version {self.new}: {bad}")
        return self._begin_step(now_s, loads)

    def end(self, now_s: float, text: str) -> None:
        """Something else has changed the split: what is there stays."""
        self._say(now_s, "cut_short", text)

    def _wait_for_version(self, now_s: float) -> dict[str, float] | None:
        if self._gone_s is None:
            self._gone_s = now_s
        if now_s - self._gone_s < GONE_S:
            return None
        return self._roll_back(now_s, f"version {self.new} does not serve any more")

    def _begin_step(self, now_s: float, loads: tuple[VersionLoad, VersionLoad]) -> dict[str, float]:
        shares = self.options.shares
        if self._num_begun == len(shares):
            self._say(now_s, "done", f"version {self.new} has taken over")
            return {self.new: ALL}
        share = shares[self._num_begun]
        self._num_begun, self._begun_s, self._then = self._num_begun + 1, now_s, loads
        self._say(now_s, "canary", f"step {self.step}: version {self.new} gets {share:g} % of the requests")
        return {self.old: ALL - share, self.new: share}

    def _roll_back(self, now_s: float, reason: str) -> dict[str, float]:
        self._say(now_s, "rolled_back", f"rolled back to version {self.old}: {reason}")
        return {self.old: ALL}

    def _say(self, now_s: float, phase: Phase, text: str) -> None:
        self.phase = phase
        self.events.append(UpdateEvent(now_s, phase, text))


@dataclass(frozen=True, slots=True)
class LostRollout:
    """One that the driver before had begun. No driver knows how its requests did at the step that it had come to, so
    it does not go on. `line` is the last that was said of it."""

    line: str
    at_s: float

    phase: ClassVar[Phase] = "cut_short"
    is_over: ClassVar[bool] = True
    step: ClassVar[str] = ""

    @property
    def events(self) -> Sequence[UpdateEvent]:
        text = f"cut short by the end of the driver; the versions keep their shares ({self.line})"
        return (UpdateEvent(self.at_s, "cut_short", text),)


def load_of(status: TensorVersionStatus) -> VersionLoad:
    """What is counted of a version, in the form of language models: the time to the first token is that of all."""
    num = status.num_succeeded + status.num_failed
    return VersionLoad(num_requests=num, num_ended=num, num_errors=status.num_failed, ttft=status.times)


def worse(new: VersionLoad, old: VersionLoad, tolerance: float) -> str | None:
    """Why the new version is considered worse; None if nothing is certain enough."""
    errors = more_errors(new, old)
    if errors is not None or not is_slower(new.ttft, old.ttft, tolerance, SLACK_S):
        return errors
    text = slower_text("its requests take", "ms", 1e3, new.ttft, old.ttft)
    return f"{text}: over {tolerance:.0%} longer with {CONFIDENCE:.0%} confidence"
