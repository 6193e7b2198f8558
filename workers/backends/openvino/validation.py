"""Whether a model that OpenVINO has read fits the configuration."""

from __future__ import annotations

from dataclasses import replace

from slipstream.workers.backends.backend import ModelContext
from slipstream.workers.backends.file_checks import WILDCARD, FileTensor, check_num_inputs, check_tensor, refusal
from slipstream.workers.backends.openvino.device_settings import skips_dynamic_batches
from slipstream.workers.backends.openvino.openvino_file import DATATYPES, OpenvinoFile


def check_file(model: ModelContext, file: OpenvinoFile) -> None:
    """Raises BackendError."""
    batching = model.config.get("sequence_batching") or {}
    controls = batching.get("control_input", [])
    states = batching.get("state", [])
    inputs, outputs = model.config.get("input", []), model.config.get("output", [])
    num_inputs = len(set(file.input_places.values()))
    check_num_inputs(model, num_inputs, len(inputs) + len(controls) + len(states))
    for control in controls:
        if control["name"] not in file.inputs:
            raise refusal(model, f"there is no input '{control['name']}' for the control of sequences")
    kinds = {"input": batches(model, file.inputs), "output": batches(model, file.outputs)}
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            check_tensor(model, kind, tensor, kinds[kind], is_exact=False)
    for state in states:
        for kind, tensors in kinds.items():
            check_tensor(model, kind, {**state, "name": state[f"{kind}_name"]}, tensors, is_exact=False)


def batches(model: ModelContext, tensors: dict[str, FileTensor]) -> dict[str, FileTensor]:
    """As they are to be compared: where the batch is of a fixed size, it may vary for those who send requests. Raises
    BackendError for a type that no request has."""
    for tensor in tensors.values():
        if tensor.datatype not in DATATYPES.values():
            raise refusal(model, f"tensor '{tensor.name}' has the type {tensor.datatype}, which requests do not have")
    if not (model.max_batch_size and skips_dynamic_batches(model)):
        return tensors
    return {
        name: replace(tensor, shape=(WILDCARD, *tensor.shape[1:])) if tensor.shape else tensor
        for name, tensor in tensors.items()
    }
