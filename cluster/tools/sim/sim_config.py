"""What `slipstream sim` is asked to run: a YAML file, flags, or both."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.config.settings_file import ConfigError, SettingsFile
from slipstream.cluster.tools.sim.sim_model import SimModelConfig
from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS
from slipstream.router.config.router_config import (
    MigrationConfig,
    PlacementConfig,
    PolicyName,
    RetentionConfig,
    SloConfig,
)

DEFAULT_SPLITS = ("1:1",)
MAX_DIVISIONS = 2_000
MAX_WORKERS = 10_000  # of one router: each that joins costs it a look at all others


class SimConfigError(Exception):
    """A setting that cannot be: one sentence with file and key."""


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """How many of each happen, at times and to workers that the seed chooses, evenly over the arrivals.

    `kills`: a worker dies and is back after the profile's `start_s`. `slow`: its steps take `slow_factor` times as long
    for `slow_s`. `cuts`: no pages get to its host or from there for `cut_s`; the router's messages do. `links`: the
    same between two hosts only. Transfers that stand still are given up after the profile's `peer_timeout_s`.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kills: int = 0
    slow: int = 0
    cuts: int = 0
    links: int = 0
    slow_factor: float = 4.0
    slow_s: float = 30.0
    cut_s: float = 10.0

    def __post_init__(self) -> None:
        for key in ("kills", "slow", "cuts", "links"):
            if not 0 <= getattr(self, key) <= 1_000_000:
                raise ValueError(f"{key} must be 0 or more, got {getattr(self, key)}")
        for key in ("slow_factor", "slow_s", "cut_s"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class Split:
    """Workers of each role. Without prefill workers each worker does both: colocated serving."""

    num_prefill: int
    num_decode: int

    @property
    def name(self) -> str:
        return f"{self.num_prefill}P{self.num_decode}D" if self.num_prefill else f"{self.num_decode} colocated"

    @classmethod
    def parse(cls, text: str, least: int = 1) -> Split:
        """`2:6` or `2P6D`, or `8` for eight workers that do both. Raises ValueError, also for fewer than `least` decode
        workers."""
        found = re.fullmatch(r"(?:(\d{1,6})(?::|[pP]))?(\d{1,6})[dD]?", text.strip())
        if found is None:
            raise ValueError(f"a split is P:D (in YAML in quotes), 1P2D or a number, got {text!r}")
        split = cls(int(found[1] or 0), int(found[2]))
        if split.num_decode < least:
            raise ValueError(f"a split has at least 1 decode worker, got {text!r}")
        if split.num_prefill + split.num_decode > MAX_WORKERS:
            raise ValueError(f"a split has at most {MAX_WORKERS} workers, got {text!r}")
        return split


@dataclass(frozen=True, slots=True)
class SimConfig:
    """`workload` and `profile` are names or paths (relative to where the command runs). Each of `policies` is run with
    each of `splits`. `page_tokens` None: the profile's, or `BLOCK_TOKENS` where the workload tells which prompts begin
    alike, because a prefix cache of small pages is most of the work then. `planner` moves the workers of each split.

    `seconds`: only what arrives within them. With several `models`, `splits` are divisions among them
    (`divisions`), by default the one that the models name, and the planner has the `budget` to divide.

    Workers tell every `report_s` how far answers are; 0: with each step, as real ones do, at ten times the cost."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    workload: str = "mixed"
    requests: int | None = None
    speed: float = 1.0
    profile: str = "h200-llama-8b"
    splits: tuple[str, ...] = DEFAULT_SPLITS
    policies: tuple[PolicyName, ...] = ("slo",)
    slo: SloConfig = field(default_factory=SloConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    migration: MigrationConfig = field(default_factory=MigrationConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)
    queue_timeout_s: float = 120.0
    request_timeout_s: float = 3600.0
    max_queued_requests: int = 100_000
    page_tokens: int | None = None
    prefix_caching: bool = True
    report_s: float = 2.0
    seed: int = 0
    seconds: float | None = None
    models: tuple[SimModelConfig, ...] = ()
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise ValueError(f"speed must be over 0, got {self.speed}")
        if self.requests is not None and self.requests < 1:
            raise ValueError(f"requests must be at least 1, got {self.requests}")
        if not self.splits:
            raise ValueError("splits must not be empty")
        if not self.policies:
            raise ValueError("policies must not be empty")
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models must have names of their own, got {name!r} {names.count(name)} times")
        if len(names) == 1:
            raise ValueError("models must be at least two; the settings of one are at the top of the file")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be over 0 and finite, got {self.seconds}")
        self.divisions()
        if self.page_tokens is not None and (self.page_tokens < 1 or BLOCK_TOKENS % self.page_tokens):
            raise ValueError(f"page_tokens must divide {BLOCK_TOKENS}, got {self.page_tokens}")
        if not 0 <= self.report_s < math.inf:
            raise ValueError(f"report_s must be 0 or more and finite, got {self.report_s}")
        if self.max_queued_requests < 1:
            raise ValueError(f"max_queued_requests must be at least 1, got {self.max_queued_requests}")
        for key in ("queue_timeout_s", "request_timeout_s"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")

    def divisions(self) -> list[tuple[Split, ...]]:
        """The workers of each model at the start of each run. Raises ValueError."""
        models = self.models
        if not models:
            return [(Split.parse(text),) for text in self.splits]
        if self.splits == DEFAULT_SPLITS:
            return [tuple(Split.parse(model.split, 0) for model in models)]
        found = []
        for text in self.splits:
            if re.fullmatch(r"all \d{1,4}", text):
                found += divisions_of(int(text[4:]), len(models))
                continue
            parts = text.split("+")
            if len(parts) != len(models):
                raise ValueError(f"a split of {len(models)} models is such as 1:3+4 or all 8, got {text!r}")
            found.append(tuple(Split.parse(part, 0) for part in parts))
        return found


def divisions_of(num_workers: int, num_models: int) -> list[tuple[Split, ...]]:
    """All ways to divide so many workers, which do both, with at least one for each model. Raises ValueError."""
    if num_workers < num_models:
        raise ValueError(f"{num_models} models need at least as many workers, got {num_workers}")
    cuts = combinations(range(1, num_workers), num_models - 1)
    ways = ([0, *cut, num_workers] for cut in islice(cuts, MAX_DIVISIONS + 1))
    found = [tuple(Split(0, end - begin) for begin, end in pairwise(way)) for way in ways]
    if len(found) > MAX_DIVISIONS:
        raise ValueError(f"there are over {MAX_DIVISIONS} ways to divide {num_workers} workers among {num_models}")
    return found


POLICIES = get_args(PolicyName)


def load_sim_config(path: Path | None, overrides: dict[str, Any]) -> SimConfig:
    """The file's settings, or the defaults, with flags on top. Raises SimConfigError."""
    try:
        file = SettingsFile.read(path, (), needed="") if path is not None else None
    except ConfigError as error:
        raise SimConfigError(error.problems[0]) from None
    try:
        config = SimConfig() if file is None else _config_of(file)
        return replace(config, **overrides)
    except ValueError as error:
        raise SimConfigError(str(error)) from None


def _config_of(file: SettingsFile) -> SimConfig:
    try:
        # A section without content reads as null and means the defaults.
        text = json.dumps({key: value for key, value in file.settings.items() if value is not None}, default=str)
    except TypeError:
        raise SimConfigError(f"{file.path}: a key that is no text") from None
    try:
        return TypeAdapter(SimConfig).validate_json(text, strict=True)
    except ValidationError as error:
        raise SimConfigError(_sentence(file, error.errors()[0])) from None


def _sentence(file: SettingsFile, error: ErrorDetails) -> str:
    """File, line, key and reason."""
    where = file.place(tuple(str(part) for part in error["loc"]))
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":  # of a dataclass as a whole, whose sentence names key and value
        return f"{where}: {reason}"
    if error["type"] == "unexpected_keyword_argument":
        return f"{where}: there is no such setting"
    if error["loc"][:1] == ("splits",):
        reason = 'a list of texts such as ["1:3", "2P2D", "4"] was expected'
    return f"{where}: {reason}, got {str(error['input'])[:80]!r}"
