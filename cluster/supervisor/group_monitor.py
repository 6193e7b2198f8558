"""Follows a worker group while it lives: polls its state, and makes sure that a wish (to leave, or to change its role)
is carried out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from ray.exceptions import RayError

from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.supervisor.managed import KeptGroup
from slipstream.cluster.supervisor.managed_router import KeptRouter
from slipstream.workers.telemetry.worker_report import WorkerReport

CHANGING_S = 0.1
SERVING_S = 1.0
SILENT_S = 10.0  # without an answer for this long, a group is reported as silent
GIVE_UP_S = 60.0  # after this long its processes are ended, so that it is started again


class Follower:
    """Calls `serves` for groups that serve, and `note` when a group's state or its details change otherwise."""

    def __init__(
        self,
        router: KeptRouter,
        serves: Callable[[KeptGroup, str], None],
        note: Callable[[KeptGroup, MemberState, str], None],
    ) -> None:
        self._router = router
        self._serves = serves
        self._note = note

    async def follow(self, kept: KeptGroup) -> None:
        """Returns when the group is dead. Its pending `run` calls tell what it died of."""
        while True:
            try:
                report = await self._report_of(kept)
            except RayError:
                return
            kept.status.startup_s = list(report.startup_s)
            await self._pursue_wish(kept, report)
            if report.state == "ready":
                if kept.wish is None:  # otherwise it is only ready because it has not heard of the wish yet
                    self._serves(kept, report.progress)
            elif report.state != kept.status.state or report.progress != kept.status.detail:
                self._note(kept, report.state, report.progress)
            is_settled = kept.ready.is_set() and kept.wish is None
            with suppress(TimeoutError):
                await asyncio.wait_for(kept.nudge.wait(), SERVING_S if is_settled else CHANGING_S)
            kept.nudge.clear()

    async def _report_of(self, kept: KeptGroup) -> WorkerReport:
        """The group's report. Waits as long as it takes, because a frozen process may thaw. Raises RayError."""
        asked = asyncio.ensure_future(kept.member.report())
        asked_s = time.monotonic()
        try:
            while not asked.done():
                await asyncio.wait([asked], timeout=SERVING_S)
                if not asked.done() and not self._cut_off_if_overdue(kept):
                    self._lose_patience(kept, time.monotonic() - asked_s)
            return asked.result()
        finally:
            asked.cancel()
            # It may have failed in the same turn of the loop in which we are cancelled.
            await asyncio.gather(asked, return_exceptions=True)

    def _lose_patience(self, kept: KeptGroup, waited_s: float) -> None:
        """Reports, and in the end kills, a group that served and does not answer any more. One that is starting may
        simply be too busy to answer."""
        if kept.wish is not None or kept.status.state not in ("ready", "silent"):
            return
        if waited_s >= GIVE_UP_S:
            kept.member.cut_off()
        elif waited_s >= SILENT_S and kept.status.state == "ready":
            why = f"has not answered for {SILENT_S:g} s; after {GIVE_UP_S:g} it is ended and started again"
            self._note(kept, "silent", why)

    async def _pursue_wish(self, kept: KeptGroup, report: WorkerReport) -> None:
        wish = kept.wish
        if wish is None:
            return
        if report.role == wish.next_role and report.state == "ready":
            kept.wish = None
        elif (
            not self._cut_off_if_overdue(kept)
            and report.epoch != kept.asked_epoch
            and await self._router.drain_worker(kept.status.name, wish)
        ):
            kept.asked_epoch = report.epoch

    @staticmethod
    def _cut_off_if_overdue(kept: KeptGroup) -> bool:
        """Kills a group that has not carried out its wish in time. Its requests continue elsewhere, from the tokens
        that the router has. Returns whether it was killed."""
        if kept.wish is None or time.monotonic() <= kept.wish.overdue_s:
            return False
        kept.member.cut_off()
        return True
