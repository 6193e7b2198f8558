"""What an update sees of the router, and how its actions are carried out."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from ray.exceptions import RayError

from slipstream.cluster.fleet.update_plan import (
    AddGroup,
    RemoveGroup,
    SetMirror,
    SetSplit,
    UpdateAction,
    VersionLoad,
)
from slipstream.cluster.fleet.versioned_fleet import VersionedFleet, VersionRouter
from slipstream.router.protocol.generation import ErrorKind
from slipstream.router.status.version_status import VersionStatus

ROUTER_PATIENCE_S = 5.0
FAILED_ENDS: tuple[ErrorKind, ...] = (
    "worker_failed",
    "logits_processor_failed",
    "request_timeout",
    "queue_timeout",
)  # of requests let in

log = logging.getLogger(__name__)


class SeenVersions(NamedTuple):
    """The loads by version, None if the router does not answer; the split, and the share of requests that are copied to
    the new version, where there are any."""

    loads: dict[str, VersionLoad] | None = None
    split: dict[str, float] | None = None
    mirror: float | None = None


class UpdatePort:
    """The fleet and the router of one model."""

    def __init__(self, fleet: VersionedFleet, router: VersionRouter) -> None:
        self._fleet = fleet
        self._router = router

    async def look(self, new: str) -> SeenVersions:
        """What the router knows of the versions, of which `new` is the new one."""
        try:
            async with asyncio.timeout(ROUTER_PATIENCE_S):
                versions = await self._router.versions()
        except OSError:
            return SeenVersions()
        split = {version.name: version.weight for version in versions if version.weight is not None}
        mirror = next((one.mirror.percent for one in versions if one.name == new and one.mirror is not None), None)
        return SeenVersions({version.name: load_of(version) for version in versions}, split or None, mirror)

    async def perform(self, action: UpdateAction) -> None:
        """Carries out an action. One that fails because a process is gone or does not answer comes again at the next
        step. Raises FleetError if it cannot be done."""
        try:
            match action:
                case SetSplit(split):
                    async with asyncio.timeout(ROUTER_PATIENCE_S):
                        await self._router.set_split(split)
                case SetMirror(version, percent):
                    async with asyncio.timeout(ROUTER_PATIENCE_S):
                        await self._router.set_mirror(version, percent)
                case AddGroup(role, version):
                    await self._fleet.add(role, 1, version)
                case RemoveGroup(name):
                    await self._fleet.retire(name)
        except (RayError, OSError) as error:
            log.warning("update: %s: %s; it is tried again", action.reason, error)


def load_of(status: VersionStatus) -> VersionLoad:
    counts = status.counts
    return VersionLoad(
        num_requests=counts.num_requests + counts.num_moved_in,
        num_failed_attempts=counts.num_failed_attempts,
        num_ended=sum(counts.ends.values()),
        num_errors=sum(counts.ends[kind] for kind in FAILED_ENDS),
        ttft=counts.ttft_moments,
        itl=counts.itl_moments,
        mirror=status.mirror,
    )
