"""A model as its files say, before it has completed its configuration itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig
from xxhash import xxh3_128

from slipstream.router.model_repository.config.completion import completed_config
from slipstream.router.model_repository.config.config_fault import ModelConfigError, raise_first
from slipstream.router.model_repository.config.config_json import to_dict
from slipstream.router.model_repository.config.config_text import from_dict
from slipstream.router.model_repository.config.defaults import set_instance_groups
from slipstream.router.model_repository.config.model_checks import instance_faults, model_faults
from slipstream.router.model_repository.config.model_files import ModelFolderFiles
from slipstream.router.model_repository.config.model_spec_reader import read_groups, read_parameters, read_spec
from slipstream.router.model_repository.config.sequence_checks import state_faults
from slipstream.router.model_repository.config.tensor_checks import tensor_faults
from slipstream.router.model_repository.override_files import remove_override
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.refusals import unserved_faults
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.model_repository.sources.repository_watch import ModelStamp
from slipstream.router.tensors.model_spec import InstanceGroup, ModelSpec

NO_STAMP = ModelStamp({})


@dataclass(frozen=True, slots=True)
class ModelDraft:
    """`message` has the defaults that do not depend on what the model completes. `versions` are those that the version
    policy serves, lowest first. `folder` is the model's folder; if it `is_temporary`, it was made for this load, from
    files that came with it, and `remove` is to be called when no version of it is served any more."""

    name: str
    folder: Path
    message: ModelConfig
    versions: tuple[str, ...]
    options: ReadOptions
    is_temporary: bool = False
    stamp: ModelStamp = NO_STAMP  # of the folder, before it was read

    @property
    def backend(self) -> str:
        """Empty for an ensemble."""
        return str(self.message.backend)

    @property
    def input_names(self) -> frozenset[str]:
        """Those that the configuration has."""
        return frozenset(str(tensor.name) for tensor in self.message.input)

    @property
    def step_models(self) -> tuple[str, ...]:
        """The models that an ensemble is made of, each once, in the order of its steps."""
        return tuple(dict.fromkeys(step.model_name for step in self.message.ensemble_scheduling.step))

    @property
    def parameters(self) -> dict[str, str]:
        """Those of the configuration: for the `start` of an instance (EXECUTION_ENV_PATH)."""
        return read_parameters(self.message)

    @property
    def instance_groups(self) -> tuple[InstanceGroup, ...]:
        """As they will be: no model changes them. Raises LoadError (a GPU that is not there)."""
        try:
            return read_groups(self._with_instances())
        except ModelConfigError as error:
            raise LoadError(error.fault.status) from None

    @property
    def model_file(self) -> str:
        """The name of the model's file in its version's folder: `model.py`."""
        return str(self.message.default_model_filename)

    @property
    def backend_file(self) -> str:
        """The code of its backend; "": the backend is Slipstream's own."""
        return str(self.options.backend_directory.file_of(self.backend) or "")

    @property
    def is_completed_by_model(self) -> bool:
        """Whether an instance is to be sent `complete_config` before `complete`, if instances execute the model."""
        return self.options.auto_complete

    def config_to_complete(self) -> dict[str, Any]:
        """The `config` of the message `complete_config`: the configuration as a JSON object, with all defaults. Raises
        LoadError."""
        try:
            return to_dict(self._with_instances())
        except ModelConfigError as error:
            raise LoadError(error.fault.status) from None

    def complete(self, version: str, completed: Mapping[str, Any] | None = None) -> ModelSpec:
        """A version of the model, from the `config` of the message `completed` (None: nothing completed it). Reads
        files with labels and initial states. Raises LoadError."""
        try:
            config = self._with_instances()
            if completed is not None:
                config = completed_config(config, from_dict(completed))
            raise_first(model_faults(config))
            raise_first(tensor_faults(config))
            raise_first(state_faults(config))
            return read_spec(config, version, self.versions, ModelFolderFiles(self.name, self.folder))
        except ModelConfigError as error:
            raise LoadError(error.fault.status) from None

    def keeps_version(self, version: str, before: ModelDraft) -> bool:
        """Whether a version that was loaded from an earlier draft can go on: its files are the same, and nothing has
        changed in the configuration but, perhaps, the instance groups and which versions are served."""
        revision = self.revision_of(version)
        return revision != "" and revision == before.revision_of(version)

    def revision_of(self, version: str) -> str:
        """Stands for the files and the configuration that instances of a version are made from, but for the instance
        groups. "" for a temporary folder, which no other router reads again."""
        if self.is_temporary:
            return ""
        digest = xxh3_128(_of_all_instances(self.message).SerializeToString(deterministic=True))
        for name, time_ns in sorted(self.stamp.of_version(version).items()):
            digest.update(f"{name}\0{time_ns}\n".encode())
        digest.update(f"{self.folder}\0{version}".encode())
        return digest.hexdigest()

    def remove(self) -> None:
        """Removes the folder if it is temporary."""
        if self.is_temporary:
            remove_override(self.folder)

    def _with_instances(self) -> ModelConfig:
        raise_first(unserved_faults(self.message, self.options))
        config = ModelConfig()
        config.CopyFrom(self.message)
        set_instance_groups(config, self.options.devices)
        raise_first(instance_faults(config, self.options.devices))
        return config


def _of_all_instances(config: ModelConfig) -> ModelConfig:
    rest = ModelConfig()
    rest.CopyFrom(config)
    rest.ClearField("instance_group")
    rest.ClearField("version_policy")
    return rest
