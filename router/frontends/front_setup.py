"""The settings that a front process gets when it starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.frontends.front_messages import ServedLimits
from slipstream.router.model_files.sampling_defaults import PLAIN, SamplingDefaults
from slipstream.router.process.log_format import JsonFormatter, TextFormatter
from slipstream.router.registry.worker_abilities import NO_ABILITIES, WorkerAbilities

TRAVELLING = (logging.Formatter, JsonFormatter, TextFormatter)


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How a process logs: its fronts write to the same file, and their lines must look alike. `formatter` None: the
    library's own."""

    level: int
    formatter: logging.Formatter | None

    @classmethod
    def of_this_process(cls) -> LogStyle:
        root = logging.getLogger()
        formatter = next((handler.formatter for handler in root.handlers), None)
        # Another class may hold what cannot travel.
        return cls(root.level, formatter if type(formatter) in TRAVELLING else None)

    def adopt(self) -> None:
        root = logging.getLogger()
        root.setLevel(self.level)
        for handler in root.handlers:
            handler.setFormatter(self.formatter)


@dataclass(frozen=True, slots=True)
class FrontModel:
    """A model that a front serves, or the text of one of its versions. The front reads the tokenizer itself, from
    `source`, and gets the `defaults` of requests. `max_model_len`, `versions`, their `shares` and
    the `abilities` are those of the workers that are connected."""

    source: ModelSource
    defaults: SamplingDefaults = PLAIN
    max_model_len: int | None = None
    versions: tuple[str, ...] = ()
    is_leaving: bool = False
    shares: tuple[tuple[str, float], ...] = ()
    abilities: WorkerAbilities = NO_ABILITIES

    @property
    def name(self) -> str:
        """Unique among models and texts."""
        return self.source.key


def served_limits(model: FrontModel) -> ServedLimits:
    """The message that tells a front what depends on the workers of a model."""
    return ServedLimits(model.name, model.max_model_len, model.versions, model.shares, model.abilities)


@dataclass(frozen=True, slots=True)
class FrontSetup:
    """`models` are by their names. `config.http` has the port that all fronts share. At `holder_path` is the socket
    holder, where a front leaves its clients to the next one. A front that `is_ending` takes no new clients, one that
    `is_leaving` closes each connection after its next response. `unix_socket_fd` is inherited, and listens."""

    config: RouterConfig
    models: Mapping[str, FrontModel]
    log: LogStyle
    holder_path: Path | None = None
    is_ending: bool = False
    is_leaving: bool = False
    unix_socket_fd: int | None = None
