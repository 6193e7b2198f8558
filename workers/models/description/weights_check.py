"""Whether the weights of a directory are those that a general model asks for, by the headers of their files."""

from __future__ import annotations

from pathlib import Path

from slipstream.workers.models.description.config_check import TEXT_SECTIONS
from slipstream.workers.models.description.describing import EXAMINE, model_parts
from slipstream.workers.models.description.model_description import DIRECTORY, ModelDescription
from slipstream.workers.models.description.module_process import run_in_subprocess
from slipstream.workers.models.description.result_cache import ResultCache, key_of
from slipstream.workers.models.directory.json_keys import ModelError, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE
from slipstream.workers.models.directory.weight_files import FLOATS, LOADED, WeightFiles, pickled_file_names


def check_general_weights(model_dir: Path, description: ModelDescription, *, runs_code: bool = False) -> None:
    """Raises ModelError, in a sentence, if files are missing or truncated, or tensors missing or of other shapes. Where
    names differ from the model's, a process of its own asks transformers how they are renamed and converted."""
    pickled = pickled_file_names(model_dir)
    if pickled:
        parts = [_stamp(model_dir / name) for name in pickled]
    else:
        files = WeightFiles.read(model_dir)
        _check_dtypes(files)
        if _fit(files, description):
            return
        parts = [repr(sorted((name, one.shape, one.dtype) for name, one in files.tensors.items())).encode()]
    cache, key = ResultCache(), key_of("weights", [*model_parts(model_dir, runs_code=runs_code), *parts])
    problem = cache.get(key)
    if problem is None:
        arguments = ("weights", str(model_dir.absolute()), str(int(runs_code)))
        problem = run_in_subprocess(EXAMINE, arguments, model_dir)
        cache.put(key, problem)
    if problem:
        raise ModelError(problem.decode("utf-8", "replace").replace(DIRECTORY, str(model_dir)))


def _check_dtypes(files: WeightFiles) -> None:
    """Raises ModelError if the safetensors library cannot load a tensor's dtype, or if weights are no floats without a
    quantisation in config.json: transformers would cast them and ignore their scales."""
    config = read_json(files.model_dir / CONFIG_FILE)
    parts = (config, *(config.get(name) for name in TEXT_SECTIONS))
    is_quantized = any(isinstance(part, dict) and part.get("quantization_config") for part in parts)
    for name, tensor in files.tensors.items():
        is_plain = name.endswith(".weight") and not is_quantized
        if tensor.dtype not in (FLOATS if is_plain else LOADED):
            why = "without a quantization_config" if tensor.dtype in LOADED else "which transformers does not load"
            raise ModelError(f"{files.model_dir / tensor.file}: tensor {name} has dtype {tensor.dtype}, {why}")


def _fit(files: WeightFiles, description: ModelDescription) -> bool:
    """Whether all tensors have the model's own names and shapes."""
    asked = {name: shape for name, shape in description.tensors.items() if name not in description.tied}
    return all(name in files.tensors and files.tensors[name].shape == shape for name, shape in asked.items()) and all(
        name in description.tensors for name in files.tensors
    )


def _stamp(path: Path) -> bytes:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return f"{path.name} {status.st_size} {status.st_mtime_ns} {status.st_ino}".encode()
