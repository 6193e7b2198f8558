"""What `serve` and `check` do with a model in the place of a configuration."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from slipstream.cluster.config.cluster_config import CLUSTER_NAME, ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.repository.model_location import ModelFiles
from slipstream.cluster.repository.outlines import Outlines
from slipstream.cluster.sizing.serve_target import ChosenConfig, chosen_for
from slipstream.cluster.sizing.target_type import ServeTarget
from slipstream.cluster.state import host_folders, name_claim
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.console import Console
from slipstream.cluster.triton_flags.repository_flags import RepositoryFlags, setting_options

DEFAULT_NAME = "slipstream"
OPTIONS = {"name": "--name", "router.http.port": "--port"}  # of `slipstream serve`, by the setting that they override


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A configuration file of the user's or, with a `model`, one that was chosen for that and that the user has not
    seen: problems are then about the model and the `options` of `slipstream serve`, by the setting that they
    override."""

    path: Path
    model: str | None = None
    options: Mapping[str, str] = field(default_factory=lambda: OPTIONS)

    @classmethod
    def of_chosen(cls, path: Path, target: ServeTarget | None, chosen: ChosenConfig) -> ConfigSource:
        if isinstance(target, RepositoryFlags):
            return cls(path, str(target), OPTIONS | setting_options())
        return cls(path, str(target or chosen.model))

    def load(self, load: Callable[[Path], ClusterConfig]) -> ClusterConfig:
        """Raises ConfigError."""
        try:
            return load(self.path)
        except ConfigError as error:
            raise ConfigError([self.sentence(problem) for problem in error.problems]) from None

    def sentence(self, problem: str) -> str:
        """A sentence `FILE:LINE: KEY: REASON`, of which parts may be missing, in the user's terms."""
        if self.model is None or problem.startswith("--"):
            return problem
        key, separator, reason = re.sub(rf"^{re.escape(str(self.path))}(:\d+)?: ", "", problem).partition(": ")
        option = self.options.get(re.sub(r"(\.\d+.*)?$", "", key, count=1)) if separator else None
        if option is not None:
            return f"{option}: {reason}"
        return f"{self.model}: {reason if key == 'model.path' else f'{key}{separator}{reason}'}"


def config_source(target: ServeTarget | None, name: str | None, port: int | None = None) -> ConfigSource:
    """The target, or what is chosen for the model that it is, which is shown and then kept in the cache folder under
    the cluster's name. Raises ConfigError, NoHome, and AlreadyRunning if the file that would be
    replaced belongs to a cluster that runs."""
    chosen = chosen_for(target, Downloads(Console(sys.stderr), must_be_newest=False))
    if chosen is None:
        assert isinstance(target, Path)
        return ConfigSource(target)
    used = name if name and CLUSTER_NAME.fullmatch(name) else DEFAULT_NAME
    name_claim.check_unused(used, host_folders.run_folder())
    path = host_folders.cache_folder() / "chosen" / f"{used}.yaml"
    chosen.write(path)
    _show(chosen)
    given = _as_arguments(target, name, port)
    Console(sys.stdout).say(f"To keep or change this: slipstream serve{given} --write my.yaml\n")
    return ConfigSource.of_chosen(path, target, chosen)


def _as_arguments(target: ServeTarget | None, name: str | None, port: int | None) -> str:
    """What the command was given, in a form to copy, but for secrets."""
    given = [f"--name={name}"] * (name is not None) + [f"--port={port}"] * (port is not None)
    if isinstance(target, RepositoryFlags):
        given += target.arguments(hides_secrets=True)
    elif target is not None:
        given.append(str(target))
    return "".join(f" {shlex.quote(argument)}" for argument in given)


def checked_config(target: ServeTarget, files: ModelFiles) -> ClusterConfig:
    """The configuration of a file, or the one that would be chosen for a model, which is shown. Raises ConfigError."""
    load = partial(load_config, files=files)
    chosen = chosen_for(target, files)
    if chosen is None:
        assert isinstance(target, Path)
        return load(target)
    _show(chosen)
    return _loaded(chosen, target, load)


def _loaded(chosen: ChosenConfig, target: ServeTarget | None, load: Callable[[Path], ClusterConfig]) -> ClusterConfig:
    """Raises ConfigError for a configuration that would be refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chosen.yaml"
        chosen.write(path)
        return ConfigSource.of_chosen(path, target, chosen).load(load)


def write_chosen(target: ServeTarget | None, path: Path, name: str | None = None, port: int | None = None) -> int:
    """Writes the configuration that is chosen for a model to a new file. Returns the exit code."""
    try:
        with Outlines() as files:  # a choice needs no weights
            chosen = chosen_for(target, files)
            if chosen is None:
                raise ConfigError([f"{target}: is a configuration already; --write is for the directory of a model"])
            if path.exists():
                raise ConfigError([f"{path}: is there already"])
            chosen = chosen.with_options(name, port)
            _loaded(chosen, target, partial(load_config, files=files))
        chosen.write(path)
    except ConfigError as error:
        for problem in error.problems:
            console.error(problem)
        return 2
    _show(chosen)
    Console(sys.stdout).say(f"written to {path}: slipstream serve {shlex.quote(str(path))}")
    return 0


def _show(chosen: ChosenConfig) -> None:
    terminal = Console(sys.stdout)
    terminal.say(f"Chosen for {chosen.model}:")
    for line in chosen.lines:
        terminal.say(line)
