"""The name of the version that a model is served as."""

from __future__ import annotations

from slipstream.cluster.repository.model_content import ModelContent, unused_name
from slipstream.cluster.state.model_state import StateOfModel


def name_version(state: StateOfModel, content: ModelContent, path: str) -> str | None:
    """Names the version in the state. What the previous driver served keeps its name, because answers continue only
    within a version. If the files have been replaced, no worker has the old ones any more, and the new ones are served
    under another name; then a sentence about that is returned."""
    if state.content == content.digest:
        return None
    before, was_served = state.version, bool(state.content)
    state.version, state.content = unused_name(content.name, state.names), content.digest
    state.names.append(state.version)
    if not was_served:
        return None
    return (
        f"the files in {path} are not those of version {before}, which served before; they are served as version "
        f"{state.version}"
    )
