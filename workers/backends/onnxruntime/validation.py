"""Whether an ONNX file fits the configuration."""

from __future__ import annotations

from typing import Any

from slipstream.workers.backends.backend import BackendError, Config, ModelContext
from slipstream.workers.backends.file_checks import check_num_inputs, check_tensor, refusal
from slipstream.workers.backends.onnxruntime.onnx_file import OnnxFile


def check_file(model: ModelContext, file: OnnxFile) -> None:
    """Raises BackendError."""
    inputs, batching = model.config.get("input", []), model.config.get("sequence_batching") or {}
    controls = control_names(batching)
    states = batching.get("state", [])
    required = [tensor for tensor in inputs if not tensor.get("optional")]
    for name in controls:
        if name not in file.inputs:
            text = f"configuration specified sequence control '{name}', but model does not provide that input"
            raise BackendError(text, "INTERNAL")
    check_num_inputs(model, len(file.inputs), len(required) + len(controls) + len(states))
    known = {**file.inputs, **file.overridable}
    for tensor in inputs:
        if tensor.get("optional") and model.max_batch_size:
            text = f"optional input '{tensor['name']}' is not supported for models that support batching"
            raise refusal(model, text)
        check_tensor(model, "input", tensor, known, is_exact=False)
    for tensor in model.config.get("output", []):
        check_tensor(model, "output", tensor, file.outputs, is_exact=True)
    for state in states:
        for kind, tensors in (("input", file.inputs), ("output", file.outputs)):
            check_tensor(model, kind, {**state, "name": state[f"{kind}_name"]}, tensors, is_exact=kind == "output")


def control_names(batching: Config) -> list[str]:
    """The inputs that the server adds to the requests of a sequence."""
    controls: list[dict[str, Any]] = batching.get("control_input", [])
    return [control["name"] for control in controls]
