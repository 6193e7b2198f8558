"""Follows a worker group while it lives: polls its state, and makes sure that a pending change (to leave, or to change
its role) is carried out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from ray.exceptions import RayError

from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.supervisor.managed import ManagedGroup
from slipstream.cluster.supervisor.managed_router import ManagedRouter
from slipstream.workers.telemetry.worker_report import WorkerReport

CHANGING_S = 0.1
SERVING_S = 1.0
SILENT_S = 10.0  # without an answer for this long, a group is reported as silent
GIVE_UP_S = 60.0  # after this long its processes are ended, so that it is started again


class GroupMonitor:
    """Calls `serves` for groups that serve, and `note` when a group's state or its details change otherwise."""

    def __init__(
        self,
        router: ManagedRouter,
        serves: Callable[[ManagedGroup, str], None],
        note: Callable[[ManagedGroup, MemberState, str], None],
    ) -> None:
        self._router = router
        self._serves = serves
        self._note = note

    async def follow(self, managed: ManagedGroup) -> None:
        """Returns when the group is dead. Its pending `run` calls tell what it died of."""
        while True:
            try:
                report = await self._report_of(managed)
            except RayError:
                return
            managed.status.startup_s = list(report.startup_s)
            await self._pursue_change(managed, report)
            if report.state == "ready":
                if managed.pending_change is None:  # otherwise it is ready only because it has not heard of the change
                    self._serves(managed, report.progress)
            elif report.state != managed.status.state or report.progress != managed.status.detail:
                self._note(managed, report.state, report.progress)
            is_settled = managed.ready.is_set() and managed.pending_change is None
            with suppress(TimeoutError):
                await asyncio.wait_for(managed.nudge.wait(), SERVING_S if is_settled else CHANGING_S)
            managed.nudge.clear()

    async def _report_of(self, managed: ManagedGroup) -> WorkerReport:
        """The group's report. Waits as long as it takes, because a frozen process may thaw. Raises RayError."""
        asked = asyncio.ensure_future(managed.member.report())
        asked_s = time.monotonic()
        try:
            while not asked.done():
                await asyncio.wait([asked], timeout=SERVING_S)
                if not asked.done() and not self._cut_off_if_overdue(managed):
                    self._lose_patience(managed, time.monotonic() - asked_s)
            return asked.result()
        finally:
            asked.cancel()
            # It may have failed in the same turn of the loop in which we are cancelled.
            await asyncio.gather(asked, return_exceptions=True)

    def _lose_patience(self, managed: ManagedGroup, waited_s: float) -> None:
        """Reports, and in the end kills, a group that served and does not answer any more. One that is starting may
        simply be too busy to answer."""
        if managed.pending_change is not None or managed.status.state not in ("ready", "silent"):
            return
        if waited_s >= GIVE_UP_S:
            managed.member.cut_off()
        elif waited_s >= SILENT_S and managed.status.state == "ready":
            why = f"has not answered for {SILENT_S:g} s; after {GIVE_UP_S:g} it is ended and started again"
            self._note(managed, "silent", why)

    async def _pursue_change(self, managed: ManagedGroup, report: WorkerReport) -> None:
        pending_change = managed.pending_change
        if pending_change is None:
            return
        if report.role == pending_change.next_role and report.state == "ready":
            managed.pending_change = None
        elif (
            not self._cut_off_if_overdue(managed)
            and report.epoch != managed.asked_epoch
            and await self._router.drain_worker(managed.status.name, pending_change)
        ):
            managed.asked_epoch = report.epoch

    @staticmethod
    def _cut_off_if_overdue(managed: ManagedGroup) -> bool:
        """Kills a group that has not carried out its change in time. Its requests continue elsewhere, from the tokens
        that the router has. Returns whether it was killed."""
        if managed.pending_change is None or time.monotonic() <= managed.pending_change.overdue_s:
            return False
        managed.member.cut_off()
        return True
