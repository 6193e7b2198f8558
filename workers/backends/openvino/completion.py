"""What a model that OpenVINO has read says of a configuration that has no inputs or outputs."""

from __future__ import annotations

from typing import Any

from slipstream.workers.backends.backend import Config, ModelContext
from slipstream.workers.backends.file_checks import WILDCARD, FileTensor, refusal
from slipstream.workers.backends.model_settings import whole_number
from slipstream.workers.backends.openvino.openvino_file import OpenvinoFile

DEFAULT_MAX_BATCH_SIZE = 4
MAX_BATCH_SIZE_SETTING = "default-max-batch-size"


def complete_from_file(model: ModelContext, file: OpenvinoFile) -> Config:
    """Batches where all shapes begin with a size that may vary, then inputs and outputs, by the first name of each.
    Raises BackendError."""
    config = model.config
    tensors = {
        "input": first_names(file.inputs, file.input_places),
        "output": first_names(file.outputs, file.output_places),
    }
    every = [*tensors["input"], *tensors["output"]]
    if not model.max_batch_size and all(tensor.shape and tensor.shape[0] == WILDCARD for tensor in every):
        setting = model.settings.get(MAX_BATCH_SIZE_SETTING)
        wanted = whole_number(model, MAX_BATCH_SIZE_SETTING, setting) if setting else DEFAULT_MAX_BATCH_SIZE
        config["max_batch_size"] = max(wanted, 0)
    if model.max_batch_size > 1 and "sequence_batching" not in config:
        config.setdefault("dynamic_batching", {})
    for kind, found in tensors.items():
        if not config.get(kind):
            config[kind] = [configured(model, tensor) for tensor in found]
    return config


def first_names(tensors: dict[str, FileTensor], places: dict[str, int]) -> list[FileTensor]:
    first: dict[int, FileTensor] = {}
    for name, place in places.items():
        first.setdefault(place, tensors[name])
    return [first[place] for place in sorted(first)]


def configured(model: ModelContext, tensor: FileTensor) -> dict[str, Any]:
    """An input or output of the configuration. Raises BackendError."""
    if tensor.shape is None:
        raise refusal(model, f"the file does not say how many dimensions tensor '{tensor.name}' has: name its dims")
    is_batched = model.max_batch_size > 0
    dims = list(tensor.shape)[1 if is_batched else 0 :]
    described: dict[str, Any] = {"name": tensor.name, "data_type": tensor.datatype, "dims": dims or [1]}
    if is_batched and not dims:
        described["reshape"] = {"shape": []}
    return described
