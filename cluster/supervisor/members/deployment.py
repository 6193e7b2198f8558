"""What all members of one model version share, and the addresses at which they listen and are reached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.process.listening import is_any
from slipstream.router.protocol.model_id import ModelId


@dataclass(frozen=True, slots=True)
class Deployment:
    """What all members of a model version share. `config` is that of this model alone. `log_dir` None: output stays
    with Ray. If the cluster `spans_nodes`, loopback addresses are replaced by those of the nodes. `manifest` is what
    the model's files have to be. Where models divide the memory of a host, `weight` is what this one counts."""

    config: ClusterConfig
    worker_token: str
    log_dir: Path | None
    spans_nodes: bool
    version: str = ""
    manifest: Manifest | None = None
    weight: float = 1.0

    @property
    def model(self) -> ModelId:
        return ModelId(self.config.model.name, self.version)

    def log_path(self, name: str) -> str | None:
        return str(self.log_dir / f"{name}.log") if self.log_dir else None

    def host(self, configured: str, node_ip: str) -> str:
        """The address at which a process on a node listens."""
        is_loopback = configured in ("localhost", "::1") or configured.startswith("127.")
        return node_ip if is_loopback and self.spans_nodes else configured


def reachable(listening: str, node_ip: str) -> str:
    """The address by which others can reach something that listens at `listening`."""
    return node_ip if is_any(listening) else listening
