"""What has changed in a repository since it was looked at before (control mode poll)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelStamp:
    """When the files of a model that matter were changed: each file or folder -> time in nanoseconds."""

    times_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RepositoryChanges:
    """`changed` models have other files, or another version folder."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def changes_between(before: Mapping[str, ModelStamp], after: Mapping[str, ModelStamp]) -> RepositoryChanges:
    """Between two results of `ModelRepository.stamps`."""
    raise NotImplementedError
