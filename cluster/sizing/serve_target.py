"""What `slipstream serve` and `check` were given: a configuration, a model, or nothing, which means the demo model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.model_dir import check_model_dir
from slipstream.cluster.repository.model_location import ModelFiles
from slipstream.cluster.repository.version_folders import NoSuchVersion, version_folder
from slipstream.cluster.sizing.chosen_config import config_text, table
from slipstream.cluster.sizing.machine_facts import MachineFacts, read_machine
from slipstream.cluster.sizing.model_size import ModelFacts
from slipstream.cluster.sizing.pool_choice import CannotServe, SizingChoice, choose
from slipstream.cluster.sizing.target_type import ServeTarget, Target
from slipstream.cluster.triton_flags.flag import FlagError
from slipstream.cluster.triton_flags.flag_table import MODEL_REPOSITORY
from slipstream.cluster.triton_flags.repository_flags import RepositoryFlags
from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.model_files.sources.weights_url import WeightsUrl, WeightsUrlError
from slipstream.workers.models.directory.json_keys import ModelError

# In a checkout `models/` at its top; in a wheel `slipstream/models/`.
DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "slipstream-demo"
OWNERS = 0o600  # the mode of a file that only its owner can read
WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ChosenConfig:
    """A configuration that was chosen for the model at a directory or an address. `text` is its file, `lines` say what
    is in it."""

    model: ServeTarget
    text: str
    lines: list[str]

    def with_options(self, name: str | None, port: int | None) -> ChosenConfig:
        """With what these options of `slipstream serve` override."""
        if name is None and port is None:
            return self
        comments = [line for line in self.text.splitlines() if not line or line.startswith("#")]
        settings = yaml.safe_load(self.text)
        if name is not None:
            settings = {"name": name, **settings}
        if port is not None:
            settings.setdefault("router", {}).setdefault("http", {})["port"] = port
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        return replace(self, text="\n".join([*comments, text]))

    def write(self, path: Path) -> None:
        """For its owner alone: there may be secrets in it. Raises ConfigError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=OWNERS)
            path.chmod(OWNERS)
            path.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise ConfigError([f"{path} cannot be written: {error.strerror or error}"]) from None


def chosen_for(target: ServeTarget | None, files: ModelFiles) -> ChosenConfig | None:
    """The configuration for a model, by default the demo model; None: the target is to be read as a configuration.
    `files` makes a directory for one that is elsewhere. Raises ConfigError if it is neither, or if the model cannot be
    served on this machine."""
    if target is None:
        return _choose(DEMO_MODEL)
    if isinstance(target, RepositoryFlags):
        return _of_flags(target)
    if isinstance(target, WeightsUrl):
        try:
            model_dir, _ = files.local(target, None, ModelCacheConfig())
        except SourceError as error:
            raise ConfigError([str(error)]) from None
        return _choose(target, model_dir)
    expanded = target.expanduser()
    try:
        if is_repository(expanded):
            return _of_flags(RepositoryFlags({MODEL_REPOSITORY.name: (str(expanded),)}))
        if expanded.is_dir():
            return _choose(expanded.absolute())
        is_there = expanded.exists()
    except (OSError, RuntimeError, ValueError):  # reading it as a configuration says what is wrong
        return None
    if expanded.suffix in WEIGHT_SUFFIXES:
        reason = "a model is served from its directory, with config.json, *.safetensors and tokenizer.json"
        raise ConfigError([f"{target}: {reason}" if is_there else f"{target}: no such file; {reason}"])
    if not is_there and expanded.suffix not in (".yaml", ".yml"):
        text = f"{target}: no such file or directory; give a configuration (.yaml) or the directory of a model"
        if HUB_NAME.fullmatch(str(target)):
            text += f" (for the model of the Hugging Face Hub: hf://{target})"
        raise ConfigError([text])
    return None


def is_repository(path: Path) -> bool:
    """Whether a directory is one of tensor models in Triton's layout, and not one of a model. Raises OSError."""
    if not path.is_dir() or (path / "config.json").exists():
        return False
    return any(path.glob("*/config.pbtxt")) or any(path.glob("*/[1-9]*/model.*"))


def _of_flags(flags: RepositoryFlags) -> ChosenConfig:
    """The configuration that flags of Triton's server stand for."""
    try:
        settings = flags.settings()
    except (FlagError, WeightsUrlError) as error:
        raise ConfigError([str(error)]) from None
    rows = [("models", path) for path in settings["repository"]["paths"]]
    rows.append(("mode", settings["repository"].get("control_mode", "none")))
    if "host" not in settings.get("router", {}).get("http", {}):
        rows.append(("host", "only this one can connect; --http-address=0.0.0.0 lets others"))
    rows += [("note", remark) for remark in flags.remarks()]
    return ChosenConfig(flags, flags.text(), [f"  {name:<9}{value}" for name, value in rows])


def _choose(named: Target, path: Path | None = None) -> ChosenConfig:
    """The choice for a model, which is in the directory `path` (None: in `named`)."""
    machine = read_machine()
    choice, model = choice_for(named, path or Path(str(named)), machine)
    return ChosenConfig(named, config_text(choice, machine, named), table(choice, machine, model))


def choice_for(named: Target, path: Path, machine: MachineFacts) -> tuple[SizingChoice, ModelFacts]:
    """The pools for the model in the directory `path`, of which an error speaks as `named`. Raises ConfigError."""
    try:
        model_dir, _ = version_folder(path, None)
        problem = check_model_dir(model_dir)
        if problem:
            raise ConfigError([f"{problem}{_hint(path)}"])
        model = ModelFacts.read(model_dir)
        return choose(machine, model), model
    except CannotServe as error:
        raise ConfigError([f"{named}: {error}"]) from None
    except (ModelError, NoSuchVersion) as error:
        raise ConfigError([str(error)]) from None
    except OSError as error:
        raise ConfigError([f"{error.filename or path}: {error.strerror or error}"]) from None


def _hint(path: Path) -> str:
    """Where the model may be instead."""
    if (path / "config.json").exists():
        return ""
    snapshots = sorted((path / "snapshots").glob("*/config.json"))
    if snapshots:
        return f"; the model is in {snapshots[-1].parent}"
    adapters = (path / "adapter_config.json").exists()
    if adapters:
        return "; it is an adapter, and not a model"
    configs = sorted(path.glob("*.yaml"))
    return f"; give one of the configurations in it, such as {configs[0]}" if configs else ""
