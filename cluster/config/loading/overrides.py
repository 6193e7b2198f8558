"""Options of `slipstream serve` that override the configuration file, and every file that an update brings later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError


@dataclass(frozen=True, slots=True)
class Overrides:
    """The overridden settings; None: as the file says."""

    name: str | None = None
    port: int | None = None

    def load(self, path: Path) -> ClusterConfig:
        """The configuration of a file with these settings overridden. Raises ConfigError."""
        config = load_config(path)
        try:
            if self.port is not None:
                http = replace(config.router.http, port=self.port)
                config = replace(config, router=replace(config.router, http=http))
            return config if self.name is None else replace(config, name=self.name)
        except ValueError as error:
            raise ConfigError([str(error)]) from None
