"""Everything that is wrong with a repository, found without loading a model."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.model_repository.config.config_fault import ConfigFault, ModelConfigError
from slipstream.router.model_repository.config.defaults import set_instance_groups
from slipstream.router.model_repository.config.model_checks import instance_faults, model_faults, name_faults
from slipstream.router.model_repository.config.model_files import WARMUP_FOLDER, ModelFolderFiles
from slipstream.router.model_repository.config.model_spec_reader import read_spec
from slipstream.router.model_repository.config.sequence_checks import state_faults
from slipstream.router.model_repository.config.tensor_checks import tensor_faults
from slipstream.router.model_repository.config_reader import read_config
from slipstream.router.model_repository.graph_checks import checked_graph
from slipstream.router.model_repository.known_ensembles import circle_of
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.refusals import unserved_faults
from slipstream.router.model_repository.repository_error import AMBIGUOUS, LoadError
from slipstream.router.model_repository.sources.model_folder import ModelFolder
from slipstream.router.model_repository.version_policy import served_versions, versions_in
from slipstream.router.tensors.backend_packages import missing_package
from slipstream.router.tensors.model_spec import ModelSpec

PYTHON = "python"
COMPLETES = "auto_complete_config"
PYTHON_CLASS = "TritonPythonModel"


@dataclass(frozen=True, slots=True)
class Problem:
    """`file` is a file, a folder or an address. `field` is a path in a configuration, or "" if the fault has none."""

    file: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.field}: {self.text}" if self.field else f"{self.file}: {self.text}"


def check_repository(folders: Sequence[str | Path], options: ReadOptions) -> list[Problem]:
    """All problems, in the order of models. Remote models are fetched."""
    problems = []
    checks: list[ModelCheck] = []
    places: dict[str, list[Path]] = {}
    for source in ModelRepository(folders, options).sources:
        try:
            for name in source.names():
                places.setdefault(name, []).extend(filter(None, [source.folder_of(name)]))
        except (OSError, SourceError) as error:
            problems.append(Problem(source.place, "", str(error)))
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            problems += [Problem(str(path), "", AMBIGUOUS) for path in paths]
        else:
            checks.append(ModelCheck(name, ModelFolder(paths[0]), options, frozenset(places)))
            problems += checks[-1].problems()
    return problems + list(_graph_problems(checks))


def _graph_problems(checks: Iterable[ModelCheck]) -> Iterator[Problem]:
    """Of ensembles whose steps do not fit together, as far as configurations say what their models are."""
    specs = {check.name: spec for check in checks if (spec := check.spec()) is not None}
    steps = {name: [step.model for step in spec.steps] for name, spec in specs.items()}
    for check in checks:
        spec = specs.get(check.name)
        if spec is None or not spec.steps or not all(step in specs for step in steps[check.name]):
            continue
        text = circle_of(check.name, steps)
        if not text:
            try:
                checked_graph(spec, [specs[step] for step in steps[check.name]])
            except LoadError as error:
                text = error.cause
        if text:
            yield Problem(str(check.file), "ensemble_scheduling", text)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """`models` are all names of the repository, which an ensemble may refer to."""

    name: str
    folder: ModelFolder
    options: ReadOptions
    models: frozenset[str]

    def spec(self) -> ModelSpec | None:
        """The model as its configuration says; None if it is wrong, or the model may complete it."""
        try:
            config = read_config(self.name, self.folder, self.options)
            if self._may_complete_tensors(config) or any(self._config_faults(config)):
                return None
            return read_spec(config, "1", ("1",), ModelFolderFiles(self.name, self.folder.path))
        except (ModelConfigError, OSError, UnicodeDecodeError):
            return None

    def problems(self) -> list[Problem]:
        try:
            config = read_config(self.name, self.folder, self.options)
            set_instance_groups(config, self.options.devices)
        except ModelConfigError as error:
            return [self._of(error.fault)]
        except (OSError, UnicodeDecodeError) as error:
            return [Problem(str(self.file), "", str(error))]
        found = [self._of(fault) for fault in self._config_faults(config)]
        return [*found, *self._version_problems(config)]

    @property
    def file(self) -> Path:
        return self.folder.config_file(self.options.config_name)

    def _of(self, fault: ConfigFault) -> Problem:
        return Problem(str(self.file), fault.field, fault.text)

    def _config_faults(self, config: ModelConfig) -> Iterator[ConfigFault]:
        faults = [*name_faults(config, self.name), *model_faults(config), *state_faults(config)]
        faults += instance_faults(config, self.options.devices)
        if not self._may_complete_tensors(config):
            faults += tensor_faults(config)
        yield from faults
        if not faults:
            yield from unserved_faults(config, self.options)
            yield from self._package_faults(config)
            yield from self._named_file_faults(config)
        for index, step in enumerate(config.ensemble_scheduling.step):
            if step.model_name not in self.models:
                text = f"ensemble {self.name} contains models that are not available or ambiguous: {step.model_name}"
                yield ConfigFault(f"ensemble_scheduling.step[{index}].model_name", text)

    def _package_faults(self, config: ModelConfig) -> Iterator[ConfigFault]:
        """Of a backend whose package is missing here, where the models will most likely run."""
        is_ours = self.options.backend_directory.file_of(config.backend) is None
        text = missing_package(config.backend) if is_ours else ""
        if text:
            yield ConfigFault("backend", text)

    def _may_complete_tensors(self, config: ModelConfig) -> bool:
        """Whether the model may set what its inputs and outputs lack: a backend by its file, a Python model by its
        code."""
        if not self.options.auto_complete or not self.options.completes(config.backend):
            return False
        if config.backend != PYTHON:
            return True
        return any(
            COMPLETES in path.read_text(encoding="utf-8", errors="replace")
            for path in self.folder.path.glob(f"*/{config.default_model_filename}")
        )

    def _named_file_faults(self, config: ModelConfig) -> Iterator[ConfigFault]:
        """Of files with labels, initial states and inputs of the warm-up. Tensors without a type, which the model
        completes, are left out."""
        known = ModelConfig()
        known.CopyFrom(config)
        for tensors in (known.input, known.output):
            for index in reversed(range(len(tensors))):
                if not tensors[index].data_type:
                    del tensors[index]
        try:
            spec = read_spec(known, "1", ("1",), ModelFolderFiles(self.name, self.folder.path))
        except ModelConfigError as error:
            yield error.fault
            return
        for index, sample in enumerate(spec.warmup):
            given = {one.name for one in sample.inputs}
            missing = [tensor.name for tensor in spec.inputs if not tensor.is_optional and tensor.name not in given]
            if sample.batch_size and missing:
                text = f"sample '{sample.name}' has no input {', '.join(missing)}"
                yield ConfigFault(f"model_warmup[{index}].inputs", text)
            for one in sample.inputs:
                path = self.folder.path / WARMUP_FOLDER / one.file
                if one.source == "file" and not path.is_file():
                    yield ConfigFault("model_warmup", f"there is no file {path}")

    def _version_problems(self, config: ModelConfig) -> Iterable[Problem]:
        versions = served_versions(config, versions_in(self.folder.subfolders()))
        if not versions:
            text = f"at least one version must be available under the version policy of model '{self.name}'"
            yield Problem(str(self.folder.path), "version_policy", text)
        name = config.default_model_filename
        for version in versions:
            path = self.folder.path / version / name
            if name and not path.exists():
                yield Problem(str(path), "", "the model's file is missing")
            elif config.backend == PYTHON:
                yield from _python_problems(path)


def _python_problems(path: Path) -> Iterator[Problem]:
    try:
        module = ast.parse(path.read_bytes())
    except SyntaxError as error:
        yield Problem(str(path), f"line {error.lineno}" if error.lineno else "", error.msg)
        return
    except ValueError as error:
        yield Problem(str(path), "", str(error))
        return
    names = {name for node in ast.walk(module) for name in _names_of(node)}
    if PYTHON_CLASS not in names and "*" not in names:
        yield Problem(str(path), "", f"has no class {PYTHON_CLASS}")


def _names_of(node: ast.AST) -> list[str]:
    """What a statement may name at the top of a module."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
