"""Asks the router from time to time whether it still answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.supervisor.group_monitor import GIVE_UP_S, SERVING_S, SILENT_S
from slipstream.cluster.supervisor.managed_router import ManagedRouter

LOOK_AT_ROUTER_S = 5.0


class RouterMonitor:
    """Calls `note` when the router's state or its details change."""

    def __init__(self, router: ManagedRouter, note: Callable[[ManagedRouter, MemberState, str], None]) -> None:
        self._router = router
        self._note = note

    async def silence(self) -> str:
        """Returns, with the reason, when the router has not answered for `GIVE_UP_S`: the next one goes on with its
        clients."""
        managed = self._router
        while True:
            if (reason := await self._unanswered()) is not None:
                return reason
            if managed.status.state == "silent":
                self._note(managed, "ready", "answers again")
            await asyncio.sleep(LOOK_AT_ROUTER_S)

    async def _unanswered(self) -> str | None:
        """Asks once. None when there is an answer, or an error, which shows in the router's death, too."""
        managed = self._router
        asked = asyncio.ensure_future(managed.member.ping())
        asked_s = time.monotonic()
        try:
            while not asked.done():
                await asyncio.wait([asked], timeout=SERVING_S)
                waited_s = time.monotonic() - asked_s
                if asked.done() or waited_s < SILENT_S:
                    continue
                if waited_s >= GIVE_UP_S:
                    return f"did not answer for {GIVE_UP_S:g} s"
                if managed.status.state == "ready":
                    why = f"has not answered for {SILENT_S:g} s; after {GIVE_UP_S:g} another one takes its place"
                    self._note(managed, "silent", why)
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        return None
