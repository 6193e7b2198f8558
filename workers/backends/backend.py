"""What a backend is: it reads the file of a tensor model, and computes batches with it.

A backend is a module with the two functions of `Backend`. Slipstream has its own in the folders beside this file;
others come from a folder that the configuration names (`repository.backend_directory`), one folder a backend, with its
`backend.py`. The process of an instance imports the backend of its model and nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Config = dict[str, Any]  # a configuration as `GET /v2/models/M/config` shows it
Arrays = Mapping[str, np.ndarray[Any, Any]]  # by the name of the tensor


class BackendError(Exception):
    """The model cannot be loaded or computed; the text reaches the client. `code` is one of Triton's error codes:
    INTERNAL, INVALID_ARG, UNSUPPORTED, NOT_FOUND, UNAVAILABLE, UNKNOWN, ALREADY_EXISTS or CANCELLED."""

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True)
class ModelContext:
    """One version of a model, for one instance. `version_folder` has its files, `model_file` is the one that the
    configuration names (default_model_filename), which may be a folder. `config` is the whole configuration.
    `settings` are those of `repository.backend_config` for this backend. `kind` is CPU, GPU or MODEL, `device` the
    number of the GPU."""

    name: str
    version: str
    version_folder: Path
    model_file: Path
    config: Config
    instance: str = ""
    kind: str = "CPU"
    device: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def max_batch_size(self) -> int:
        return int(self.config.get("max_batch_size", 0))

    @property
    def parameters(self) -> dict[str, str]:
        """Those of the configuration."""
        return {key: str(value["string_value"]) for key, value in self.config.get("parameters", {}).items()}


class LoadedModel(Protocol):
    """A model in the memory of its instance. All calls come from one thread."""

    def execute(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        """Computes one batch: [batch, *dims] of the configuration, or [*dims] where max_batch_size is 0. Returns at
        least the `wanted` outputs, with the datatypes of the configuration. Elements of BYTES are `bytes` (outputs may
        have `str`), BF16 is an array of uint16 with the bits.

        `inputs` are contiguous. They may be read only, and may lie in memory that others read, so that the model must
        not write to them; they are not valid after the call. Outputs may show them, and must be valid until the next
        call. An optional input that the requests do not have is missing. Raises BackendError; another exception is a
        failure of the model, whose text reaches the client."""

    def close(self) -> None:
        """The instance ends."""


class Backend(Protocol):
    """The functions of a backend's module."""

    def complete(self, model: ModelContext) -> Config:
        """The configuration, completed from the model's file: max_batch_size, input, output, dynamic_batching; it may
        change `model.config` and return it. Called once a load, unless completion is switched off. Raises
        BackendError."""

    def load(self, model: ModelContext) -> LoadedModel:
        """Reads the model, and checks that its file fits the configuration. Raises BackendError."""
