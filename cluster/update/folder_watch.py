"""Watches the numbered folders of a model, and begins an update by itself when a new version is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from slipstream.cluster.config.watch_config import WatchConfig
from slipstream.cluster.fleet.author import WATCH
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.fleet.update_plan import UpdateOptions
from slipstream.cluster.repository.new_versions import NewVersions, folder_stamps, why_incomplete
from slipstream.cluster.update.updater import Updater

log = logging.getLogger(__name__)


class FolderWatch:
    """`say` is called with sentences for operators. `tried` are the folders that previous drivers have tried."""

    def __init__(
        self, updater: Updater, config: WatchConfig, tried: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._updater = updater
        self._config = config
        self._versions = NewVersions(tried)
        self._say = say
        self._incomplete = ""  # what was last reported
        self._begun: tuple[Path, str] | None = None  # the folder that is updated to, and its stamp

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except OSError as error:
                log.warning("the folder of the model's versions cannot be read: %s", error)
            except Exception:  # the next look may be better
                log.exception("a look at the folder of the model's versions came to nothing")
            await asyncio.sleep(self._config.every_s)

    async def look(self) -> None:
        """Raises OSError."""
        folder = self._updater.served_folder
        if folder is None or self._updater.is_active:
            return
        if self._begun is not None:
            if folder != self._begun[0]:
                self._versions.failed(*self._begun)
            self._begun = None
        stamps = await asyncio.to_thread(folder_stamps, folder.parent)
        found = self._versions.candidate(stamps, int(folder.name))
        if found is None:
            return
        problem = await asyncio.to_thread(why_incomplete, found)
        if problem is not None:
            if problem != self._incomplete:
                self._say(f"watch: {found} is not taken so far: {problem}")
            self._incomplete = problem
            return
        await self._begin(found, stamps[found])

    async def _begin(self, folder: Path, stamp: str) -> None:
        config = self._config
        options = UpdateOptions(
            steps=config.steps,
            canary_s=config.canary_s,
            min_requests=config.min_requests,
            tolerance_percent=config.tolerance_percent,
        )
        author = WATCH._replace(reason=f"{folder} has appeared")
        try:
            await self._updater.begin_version(folder, options, author)
            self._begun = folder, stamp
        except FleetError as error:
            if error.kind != "conflict":  # else another update began meanwhile
                self._say(f"watch: {folder} is not taken: {error.reason}")
                self._versions.failed(folder, stamp)
