"""Which models are loaded without a request of the repository API."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.config.repository_config import ALL_MODELS, ControlMode


def models_at_start(mode: ControlMode, names: Sequence[str], load_models: Sequence[str]) -> list[str]:
    """The models to load at the start, of all `names` of the repository. Only mode `explicit` heeds `load_models`; one
    that is not in the repository stays in the list, so that its load fails. Raises ValueError for `*` beside others."""
    if mode != "explicit":
        return list(names)
    if ALL_MODELS not in load_models:
        return list(dict.fromkeys(load_models))
    if len(set(load_models)) > 1:
        raise ValueError(
            f"Wildcard model name '*' must be the ONLY startup model if specified at all, got {', '.join(load_models)}"
        )
    return list(names)
