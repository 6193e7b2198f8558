"""What a load does for the versions of a model: some are loaded, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError


def can_go_on(draft: ModelDraft, version: str, runtime: ServedVersion) -> bool:
    """Whether a version that serves is what a load would give, but perhaps for the number of its instances."""
    before = runtime.draft
    if version not in draft.versions or not draft.keeps_version(version, before):
        return False
    try:
        if draft.instance_groups == before.instance_groups:
            return True
        return runtime.instances is not None and runtime.instances.can_follow(draft)
    except LoadError:  # which the load will raise, too
        return False


def works_of(
    draft: ModelDraft, loaded: Mapping[str, ServedVersion], kept: Mapping[str, ServedVersion]
) -> dict[str, Awaitable[None]]:
    """What is to be done for versions, by version: they are loaded, or go on as the draft says."""
    works: dict[str, Awaitable[None]] = {version: runtime.load() for version, runtime in loaded.items()}
    for version, runtime in kept.items():
        if runtime.instances is not None:
            works[version] = runtime.instances.follow(draft)
    return works


async def causes_of_failures(works: Mapping[str, Awaitable[None]]) -> dict[str, str]:
    """Does what is to be done for versions side by side. Returns why it failed for those for which it did."""
    results = await asyncio.gather(*works.values(), return_exceptions=True)
    return {
        version: error.cause if isinstance(error, LoadError) else f"Internal: {error!r}"
        for version, error in zip(works, results, strict=True)
        if error is not None
    }
