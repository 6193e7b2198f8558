"""Which code computes the model in a directory, and what that model is."""

from __future__ import annotations

from pathlib import Path

from slipstream.workers.models.description.describing import RemoteCode, describe, examine_in_subprocess
from slipstream.workers.models.description.model_description import Found
from slipstream.workers.models.directory.json_keys import ModelError, NotNativeError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.model_spec import LanguageModelSpec, ModelImpl
from slipstream.workers.models.directory.native_family import UnknownFamilyError
from slipstream.workers.models.directory.weight_files import check_not_pickled

# What it costs that a model of a native family is computed by transformers; follows the reason.
NOT_NATIVE = "transformers computes the model in place of native code, so steps take longer, and weights more memory"


def read_spec(
    model_dir: Path, impl: ModelImpl = "auto", code: RemoteCode = "refused", *, in_subprocess: bool = False
) -> LanguageModelSpec:
    """A `ModelConfig` if a native family computes the model, else a `GeneralSpec`. `code` is what may be done with code
    in the directory, which native models do not need.

    The first call for a general model takes some seconds, in this process, or with `in_subprocess` in one of its own.
    Later ones, in any process of this user, read what it found. Raises ModelError, CodeNeededError, CodeNotRunError."""
    if impl != "transformers":
        try:
            return _read_native(model_dir)
        except UnknownFamilyError as error:
            if impl == "native":
                raise ModelError(f"model_impl native: {error}") from error
        except NotNativeError as error:
            if impl == "native":
                raise ModelError(str(error)) from error
    return describe(model_dir, code, examine_in_subprocess if in_subprocess else _examine_here).spec


def _examine_here(model_dir: Path, runs_code: bool) -> Found:
    # Imported here, as transformers takes seconds, which native models do not need.
    from slipstream.workers.models.general.examination.examine import found_in

    return found_in(model_dir, runs_code)


def why_not_native(model_dir: Path) -> str | None:
    """Why a model of a native family is computed by transformers nevertheless: a sentence that names the key. None if
    it is not so. Raises ModelError."""
    try:
        _read_native(model_dir)
    except UnknownFamilyError:
        return None
    except NotNativeError as error:
        return str(error)
    return None


def _read_native(model_dir: Path) -> ModelConfig:
    config = ModelConfig.read(model_dir)
    check_not_pickled(model_dir)
    return config
