"""A model as its files say, before its backend has completed its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.tensors.model_spec import InstanceGroup, ModelSpec


@dataclass(frozen=True, slots=True)
class ModelDraft:
    """`message` is the `inference.ModelConfig`, normalised. `versions` are those that the version policy serves,
    lowest first. `folder` is the model's folder; `is_temporary`: it was made for this load, from files that came with
    it, and `remove` is to be called when no version of it is served any more."""

    name: str
    folder: Path
    message: Any
    versions: tuple[str, ...]
    options: ReadOptions
    is_temporary: bool = False

    @property
    def backend(self) -> str:
        return str(self.message.backend)

    @property
    def parameters(self) -> dict[str, str]:
        """Those of the configuration: for the `start` of an instance (EXECUTION_ENV_PATH)."""
        raise NotImplementedError

    @property
    def instance_groups(self) -> tuple[InstanceGroup, ...]:
        """As they will be: no backend changes them. Raises LoadError (a GPU that is not there)."""
        raise NotImplementedError

    @property
    def model_file(self) -> str:
        """The name of the file of the model in its version's folder: `model.py`."""
        raise NotImplementedError

    @property
    def is_completed_by_model(self) -> bool:
        """Whether an instance process is to be sent `complete_config` before `complete`."""
        raise NotImplementedError

    def config_to_complete(self) -> dict[str, Any]:
        """The `config` of the message `complete_config`: the configuration as a JSON object, with all defaults."""
        raise NotImplementedError

    def complete(self, version: str, completed: Mapping[str, Any] | None = None) -> ModelSpec:
        """A version of the model, from the `config` of the message `completed` (None: nothing completed it). Reads
        label files. Raises LoadError."""
        raise NotImplementedError

    def remove(self) -> None:
        """Removes the folder if it is temporary."""
        raise NotImplementedError
