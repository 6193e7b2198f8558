"""What one driver is to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.overrides import Overrides
from slipstream.cluster.processes.guardian_link import GuardianLink
from slipstream.cluster.state.cluster_state import ClusterState


@dataclass(frozen=True, slots=True)
class DriverTask:
    """To serve `config`, which is what `config_path` and the command line's `overrides` say, under a name whose state
    file is at `state_path`. `before` is what the previous driver has left there, if there was one: its cluster is to be
    brought up again. `timings` shows where the time of the start went."""

    guardian: GuardianLink
    config: ClusterConfig
    config_path: Path
    overrides: Overrides
    before: ClusterState | None
    state_path: Path
    timings: bool
