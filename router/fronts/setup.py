"""What a front process is told when it begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.router.config import RouterConfig


@dataclass(frozen=True, slots=True)
class FrontSetup:
    """`config.http` has the port that all fronts share."""

    config: RouterConfig
    model: str
    model_dir: Path
    max_model_len: int | None
    log_level: int
