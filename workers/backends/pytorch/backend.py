"""Backend `pytorch`: loads a model in a file of PyTorch. Not all files say enough to complete a configuration."""

from __future__ import annotations

from slipstream.workers.backends.backend import BackendError, Config, LoadedModel, ModelContext
from slipstream.workers.backends.file_checks import check_exists
from slipstream.workers.backends.pytorch.execution_settings import ExecutionSettings
from slipstream.workers.backends.pytorch.exported_program import load_compiled, load_exported
from slipstream.workers.backends.pytorch.torch_file import TorchFormat, format_of
from slipstream.workers.backends.pytorch.torch_model import TorchModel
from slipstream.workers.backends.pytorch.torch_program import TorchProgram
from slipstream.workers.backends.pytorch.torch_script import load_script

LOADERS = {
    TorchFormat.SCRIPT: load_script,
    TorchFormat.EXPORTED: load_exported,
    TorchFormat.COMPILED: load_compiled,
}


def complete(model: ModelContext) -> Config:
    return model.config


def load(model: ModelContext) -> LoadedModel:
    check_exists(model, model.model_file)
    settings = ExecutionSettings.of(model)
    settings.apply()
    return TorchModel(model, loaded_program(model, settings), settings)


def loaded_program(model: ModelContext, settings: ExecutionSettings) -> TorchProgram:
    """Raises BackendError."""
    try:
        return LOADERS[format_of(model.model_file)](model.model_file, settings)
    except BackendError:
        raise
    except Exception as error:  # PyTorch raises all kinds
        raise BackendError(f"failed to load model '{model.name}': {error}", "INTERNAL") from error
