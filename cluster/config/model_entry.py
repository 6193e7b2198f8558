"""A model of the cluster, as the configuration describes it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.router.config.router_config import ContentFormat, SloConfig
from slipstream.router.model_files.sampling_defaults import GenerationConfigUse
from slipstream.router.parsers.detection import AUTO
from slipstream.router.parsers.parser_names import ParserNames, check_parsers
from slipstream.router.protocol.model_id import SEPARATOR
from slipstream.workers.config.worker_config import EngineConfig

MAX_NAME = 256  # characters: with a version it has to fit into the field `model` of a request
MAX_ALIASES = 100  # of one model: errors and lists of models name them
VERSION = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class ServedModelConfig:
    """`path` is a local directory in Hugging Face layout, or one with a numbered folder for each version, of which
    `version` selects one (null: the highest number). For a plain directory, `version` is a name for its content (null:
    a name is derived from the content). `name` is the name that clients ask for, by default that of the directory.
    `generation_config: none` leaves aside what generation_config.json recommends for sampling; its end tokens count in
    any case. `trust_remote_code` runs code that is in the model's directory, in its workers, where transformers has
    none for the model. `chat_template_content_format` says whether the chat template takes the content of messages as
    `string` or as a list of parts (`openai`); by default (`auto`) it is tried out. `tool_call_parser` and
    `reasoning_parser` name the formats in which the model writes calls of tools and reasoning; by default (`auto`) they
    are chosen by its chat template, with `none` they are not read. `aliases` are further names that
    clients may ask for. With `watch`, the folder of `path` is watched for further numbered folders, and an update to a
    new highest number begins by itself, as the section `watch` says."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    path: str
    name: str = ""
    version: str | int | None = None
    generation_config: GenerationConfigUse = "auto"
    chat_template_content_format: ContentFormat = "auto"
    aliases: tuple[str, ...] = ()
    watch: bool = False
    trust_remote_code: bool = False
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path must not be empty")
        if not self.name.isprintable():  # it occurs in logs, headers and metrics
            raise ValueError(f"name must be printable, got {self.name!r}")
        for key, name in (("name", self.name), *(("aliases", alias) for alias in self.aliases)):
            if len(name) > MAX_NAME:
                raise ValueError(f"{key} must have at most {MAX_NAME} characters, got {len(name)}: {name[:40]!r}...")
        if len(self.aliases) > MAX_ALIASES:
            raise ValueError(f"aliases must be at most {MAX_ALIASES}, got {len(self.aliases)}")
        for alias in self.aliases:
            if not alias or not alias.isprintable() or SEPARATOR in alias:
                raise ValueError(f"aliases must be printable names without {SEPARATOR}, got {alias!r}")
        check_parsers(self.tool_call_parser, self.reasoning_parser)
        if self.version is not None and not VERSION.fullmatch(str(self.version)):
            raise ValueError(f"version must be up to 64 letters, digits, '.', '_' or '-', got {self.version!r}")

    @property
    def parsers(self) -> ParserNames:
        return ParserNames(self.tool_call_parser, self.reasoning_parser)


NO_MODEL = ServedModelConfig("/dev/null")  # of a deployment that has only a repository


@dataclass(frozen=True, slots=True)
class ModelEntry(ServedModelConfig):
    """One of several models of a cluster. `engine` holds the settings that differ from the cluster's, `prefill` and
    `decode` its pools: by default a single decode worker. `slo` None: the levels of `router.dispatch.slo`.

    Where the budget of workers is too small for all models, `weight` decides whose requests keep their levels.
    `min_workers` is how few workers the planner may leave it; with 0 a model without requests has none, and the next
    request waits until one has started.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    weight: float = 1.0
    min_workers: int = 1
    slo: SloConfig | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    prefill: PoolConfig = field(default_factory=lambda: PoolConfig(replicas=0))
    decode: PoolConfig = field(default_factory=PoolConfig)

    def __post_init__(self) -> None:
        ServedModelConfig.__post_init__(self)
        if SEPARATOR in self.name:  # name@version asks for a version
            raise ValueError(f"name must not contain {SEPARATOR}, got {self.name!r}")
        if not (0 < self.weight < math.inf):
            raise ValueError(f"weight must be over 0 and finite, got {self.weight}")
        if self.min_workers < 0:
            raise ValueError(f"min_workers must not be negative, got {self.min_workers}")

    @property
    def served(self) -> ServedModelConfig:
        """The part that a cluster of a single model has under `model`."""
        return ServedModelConfig(*(getattr(self, one.name) for one in fields(ServedModelConfig)))
