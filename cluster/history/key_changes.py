"""Notes in the history which API keys were added, removed or changed in their file. The router follows the file by
itself; the driver reads it for the names alone, and secrets are in neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from slipstream.cluster.fleet.author import Author
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.router.access.api_key import ApiKey
from slipstream.router.access.entry_list import FileVersion, KeyFileError
from slipstream.router.access.key_file import read_keys
from slipstream.router.process.background_task import in_background

LOOK_EVERY_S = 2.0


class KeyChange(NamedTuple):
    """`what` says in words what became of the key."""

    name: str
    what: str


class KeyChanges:
    """Compares the file with what it was at the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: FileVersion | None = None
        self._keys: dict[str, ApiKey] | None = None

    def look(self) -> list[KeyChange]:
        """What has changed since the last look; nothing at the first one. A file that is broken, or gone, is left to
        the router, whose keys stay as they were."""
        try:
            version = FileVersion.of(self._path)
            if version == self._version:
                return []
            keys = {key.name: key for key in read_keys(self._path)}
        except (OSError, KeyFileError):
            return []
        before, self._version, self._keys = self._keys, version, keys
        return list(_changes(before, keys)) if before is not None else []


def _changes(before: Mapping[str, ApiKey], now: Mapping[str, ApiKey]) -> Iterator[KeyChange]:
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old is None:
            yield KeyChange(name, "added")
        elif new is None:
            yield KeyChange(name, "removed")
        elif old != new:
            differing = (one.name for one in fields(ApiKey) if getattr(old, one.name) != getattr(new, one.name))
            yield KeyChange(name, f"changed: {', '.join(differing)}".replace("digest", "sha256"))


@asynccontextmanager
async def following_keys(path: str | None, changes: ChangeLog) -> AsyncIterator[None]:
    """The file is looked at meanwhile; without a path there is none."""
    if path is None:
        yield
        return
    async with in_background(_follow(Path(path), changes), "key-changes"):
        yield


async def _follow(path: Path, changes: ChangeLog) -> None:
    keys, author = KeyChanges(path), Author("keys_file")
    while True:
        for change in await asyncio.to_thread(keys.look):
            changes.note(author, "keys", change.name, "", change.what)
        await asyncio.sleep(LOOK_EVERY_S)
