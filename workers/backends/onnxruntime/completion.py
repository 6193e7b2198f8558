"""What an ONNX file says of a configuration that has no inputs or outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipstream.workers.backends.backend import BackendError, Config, ModelContext
from slipstream.workers.backends.file_checks import WILDCARD, FileTensor
from slipstream.workers.backends.model_settings import whole_number
from slipstream.workers.backends.onnxruntime.onnx_file import OnnxFile

DEFAULT_MAX_BATCH_SIZE = 4
MAX_BATCH_SIZE_SETTING = "default-max-batch-size"


def complete_from_file(model: ModelContext, file: OnnxFile) -> Config:
    """Batches where all shapes begin with a size that may vary, then inputs and outputs. Raises BackendError."""
    config = model.config
    complete_batching(model, file)
    for kind, tensors in (("input", file.inputs), ("output", file.outputs)):
        if not config.get(kind):
            config[kind] = [configured(tensor, model.max_batch_size > 0) for tensor in tensors.values()]
    return config


def complete_batching(model: ModelContext, file: OnnxFile) -> None:
    config = model.config
    if not can_batch([*file.inputs.values(), *file.outputs.values()]):
        if model.max_batch_size:
            text = (
                f"autofill failed for model '{model.name}': model does not support batching while non-zero "
                "max_batch_size is specified"
            )
            raise BackendError(text, "INVALID_ARG")
        return
    if not model.max_batch_size:
        setting = model.settings.get(MAX_BATCH_SIZE_SETTING)
        wanted = whole_number(model, MAX_BATCH_SIZE_SETTING, setting) if setting else DEFAULT_MAX_BATCH_SIZE
        config["max_batch_size"] = max(wanted, 0)
    if model.max_batch_size > 1 and "sequence_batching" not in config:
        config.setdefault("dynamic_batching", {})


def can_batch(tensors: Iterable[FileTensor]) -> bool:
    return all(tensor.shape and tensor.shape[0] == WILDCARD for tensor in tensors)


def configured(tensor: FileTensor, is_batched: bool) -> dict[str, Any]:
    """An input or output of the configuration. One number for each row has no dimensions of its own: it is reshaped."""
    dims = list(tensor.shape or ())[1 if is_batched else 0 :]
    described: dict[str, Any] = {"name": tensor.name, "data_type": tensor.datatype, "dims": dims or [1]}
    if is_batched and not dims:
        described["reshape"] = {"shape": []}
    return described
