"""What has changed in a repository since it was looked at before (control mode poll)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONFIG_NAMES = {"config.pbtxt", "configs"}


@dataclass(frozen=True, slots=True)
class ModelStamp:
    """When the files of a model were changed: each path below its folder -> nanoseconds."""

    times_ns: Mapping[str, int]

    def of_version(self, version: str) -> Mapping[str, int]:
        """What a version depends on beside the configuration: its own folder, and files that all versions share."""
        return {
            name: time_ns
            for name, time_ns in self.times_ns.items()
            if (first := name.partition("/")[0]) == version or not (first.isdigit() or first in CONFIG_NAMES)
        }


@dataclass(frozen=True, slots=True)
class RepositoryChanges:
    """Names of models, sorted. `changed` ones have other files, or other version folders."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def changes_between(before: Mapping[str, ModelStamp], after: Mapping[str, ModelStamp]) -> RepositoryChanges:
    """Between two results of `ModelRepository.stamps`. A file that is older than the one before has changed, too: it
    was copied with its time."""
    return RepositoryChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
        removed=tuple(sorted(before.keys() - after.keys())),
    )
