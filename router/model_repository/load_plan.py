"""Which models are loaded without a request of the repository API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

ControlMode = Literal["none", "explicit", "poll"]


def models_at_start(mode: ControlMode, names: Sequence[str], load_models: Sequence[str]) -> list[str]:
    """The models to load at the start, of all `names` of the repository. Raises ValueError for `load_models` that do
    not fit the mode, or for `*` beside others."""
    raise NotImplementedError
