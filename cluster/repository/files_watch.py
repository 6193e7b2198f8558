"""Notices when the files of a version that is served are no longer those that it was loaded from."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from slipstream.router.model_files.file_digest import DigestCache
from slipstream.router.model_files.manifest import Manifest

LOOK_EVERY_S = 5.0

log = logging.getLogger(__name__)


class VersionFiles(NamedTuple):
    """Where the files of a version were, and what they were."""

    model_dir: Path
    manifest: Manifest


class FilesWatch:
    """`changed` has one sentence for each version whose files are others now: its workers serve on with what they have
    in memory, and none can be started. `num_refused` counts, by version, starts that failed for that reason.

    `served` returns the versions that have workers; `on_change` is called with `changed` whenever that is different.
    """

    def __init__(
        self, served: Callable[[], Mapping[str, VersionFiles]], on_change: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._served = served
        self._on_change = on_change
        self._cache = DigestCache.of_user()
        self.changed: dict[str, str] = {}
        self.num_refused: Counter[str] = Counter()

    @property
    def versions(self) -> list[str]:
        return sorted(self._served())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Compares the stamps, and reads what has another one."""
        served = dict(self._served())
        changed = await asyncio.to_thread(self._differences, served)
        if changed != self.changed:
            self.changed = changed
            self._on_change(changed)

    def _differences(self, served: Mapping[str, VersionFiles]) -> dict[str, str]:
        found = {version: files.manifest.difference(files.model_dir, self._cache) for version, files in served.items()}
        return {version: difference for version, difference in found.items() if difference is not None}
