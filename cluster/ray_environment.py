"""Which Ray a cluster is to run on, and the environment of one of our own. Imports no Ray."""

from __future__ import annotations

import os
import secrets

from slipstream.cluster import processes
from slipstream.cluster.config import RayConfig


def ray_address(config: RayConfig) -> str | None:
    """The existing Ray to use; None: one of our own."""
    address = config.address or os.environ.get("RAY_ADDRESS") or None
    return None if address == "local" else address


def own_ray_environment() -> dict[str, str]:
    """Environment of a Ray of our own. Ray reads part of it when it is imported, so it must be set before that."""
    return {
        # Nothing leaves the machine, and no question is asked at the terminal.
        "RAY_USAGE_STATS_ENABLED": "0",
        # Whoever can reach a Ray port can run code as this user: ask for a token that only our processes have.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray's coming behaviour, taken now, because otherwise it warns of it (FutureWarning).
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # We watch our processes ourselves; without the exporters Ray's agents cost less.
        "RAY_enable_metrics_collection": "0",
        processes.MARK: secrets.token_hex(16),
    }
