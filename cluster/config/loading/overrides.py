"""Options of `slipstream serve` that override the configuration file, and every file that an update brings later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.model_location import ModelFiles
from slipstream.cluster.terminal import console


@dataclass(frozen=True, slots=True)
class Overrides:
    """The overridden settings; None: as the file says."""

    name: str | None = None
    port: int | None = None
    host: str | None = None

    def load(
        self, path: Path, warn: Callable[[str], None] = console.warning, files: ModelFiles | None = None
    ) -> ClusterConfig:
        """The configuration of a file with these settings overridden; see `load_config`. Raises ConfigError."""
        config = load_config(path, warn, files)
        try:
            http = config.router.http
            if self.port is not None:
                http = replace(http, port=self.port)
            if self.host is not None:
                http = replace(http, host=self.host)
            config = replace(config, router=replace(config.router, http=http))
            return config if self.name is None else replace(config, name=self.name)
        except ValueError as error:
            option = "--" if str(error).startswith("name ") else ""
            raise ConfigError([f"{option}{error}"]) from None
