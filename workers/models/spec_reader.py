"""Which code computes the model in a directory, and what that model is."""

from __future__ import annotations

from pathlib import Path

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig, UnknownFamilyError
from slipstream.workers.models.directory.model_spec import ModelImpl, ModelSpec


def read_spec(model_dir: Path, impl: ModelImpl = "auto") -> ModelSpec:
    """A `ModelConfig` if a native family computes the model, else a `GeneralSpec`. Raises ModelError."""
    if impl != "transformers":
        try:
            return ModelConfig.read(model_dir)
        except UnknownFamilyError as error:
            if impl == "native":
                raise ModelError(f"model_impl native: {error}") from error
    # Imported here, as transformers takes seconds, which native models do not need.
    from slipstream.workers.models.general.describe import describe

    return describe(model_dir)
