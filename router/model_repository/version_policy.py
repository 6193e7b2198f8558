"""Which versions of a model are served."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tritonclient.grpc.model_config_pb2 import ModelConfig

VERSION = re.compile(r"0|[1-9]\d*")


def versions_in(folders: Iterable[str]) -> list[int]:
    """The versions whose folders these are, lowest first: the names that are a number without leading zeros."""
    return sorted(int(name) for name in folders if VERSION.fullmatch(name))


def served_versions(config: ModelConfig, existing: Iterable[int]) -> tuple[str, ...]:
    """Of the existing ones those that the policy selects, lowest first."""
    versions = sorted(existing)
    policy = config.version_policy
    if policy.HasField("specific"):
        versions = [version for version in versions if version in policy.specific.versions]
    elif policy.HasField("latest"):
        versions = versions[max(0, len(versions) - policy.latest.num_versions) :]
    return tuple(map(str, versions))
