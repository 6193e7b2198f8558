"""A loaded model of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.jit._fuser import optimized_execution

from slipstream.workers.backends.backend import Arrays, BackendError, ModelContext
from slipstream.workers.backends.file_checks import check_num_inputs, check_tensor, refusal
from slipstream.workers.backends.pytorch.execution_settings import ExecutionSettings
from slipstream.workers.backends.pytorch.tensor_names import check_outputs, places_of
from slipstream.workers.backends.pytorch.torch_arrays import Array, array_of, tensor_of, texts_of
from slipstream.workers.backends.pytorch.torch_program import TorchProgram, Value


class TorchModel:
    """LoadedModel. Raises BackendError if the program does not fit the configuration."""

    def __init__(self, model: ModelContext, program: TorchProgram, settings: ExecutionSettings) -> None:
        self._program = program
        self._settings = settings
        configured = all_inputs(model)
        self._datatypes = {tensor["name"]: kserve_name(tensor["data_type"]) for tensor in configured}
        self._outputs = {tensor["name"]: kserve_name(tensor["data_type"]) for tensor in model.config.get("output", [])}
        for state in states_of(model):
            self._outputs[state["output_name"]] = kserve_name(state["data_type"])
        for kind, found in (("input", configured), ("output", self._outputs)):
            if not found:
                text = f"model configuration must contain at least one {kind}, none were specified."
                raise BackendError(text, "INTERNAL")
        self._places = input_places(model, program, configured)
        self._output_places = places_of(list(self._outputs), program.outputs or ())
        if program.outputs is not None:
            check_outputs(self._output_places, len(program.outputs))

    def execute(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        settings = self._settings
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode() if settings.inference_mode else torch.no_grad())
            if not settings.optimized_execution:
                stack.enter_context(optimized_execution(False))
            try:
                returned = self._program.call(self._given(inputs))
            except Exception as error:  # PyTorch raises all kinds
                raise BackendError(f"PyTorch execute failure: {error}", "INTERNAL") from error
            named = self._named(returned, wanted)
            outputs = {name: array_of(name, value, self._outputs[name]) for name, value in named}
        if settings.cleans_cache and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return outputs

    def close(self) -> None:
        del self._program

    def _given(self, inputs: Arrays) -> Any:
        values = {name: self._value(name, array) for name, array in inputs.items()}
        if self._program.inputs is None:
            return values
        given: list[Value] = [None] * len(self._program.inputs)
        for name, value in values.items():
            given[self._places[name]] = value
        return given

    def _value(self, name: str, array: Array) -> Value:
        datatype = self._datatypes[name]
        if datatype == "BYTES":
            return texts_of(array)
        tensor = tensor_of(array, is_bfloat16=datatype == "BF16", is_copied=self._program.may_write)
        device = self._settings.device
        return tensor if device is None or device.type == "cpu" else tensor.to(device)

    def _named(self, returned: Sequence[Value] | dict[str, Value], wanted: Sequence[str]) -> list[tuple[str, Value]]:
        """Raises BackendError for an output that is not there."""
        if isinstance(returned, dict):
            if all(name in returned for name in wanted):
                return [(name, returned[name]) for name in wanted]
            returned = list(returned.values())
        check_outputs(self._output_places, len(returned))
        return [(name, returned[self._output_places[name]]) for name in wanted]


def input_places(model: ModelContext, program: TorchProgram, configured: list[dict[str, Any]]) -> dict[str, int]:
    """Raises BackendError."""
    if program.inputs is None:
        return {}
    required = [tensor for tensor in configured if not tensor.get("optional")]
    if len(configured) > len(program.inputs) or len(required) == len(configured):
        check_num_inputs(model, len(program.inputs), len(configured))
    places = places_of([tensor["name"] for tensor in configured], [one.names for one in program.inputs])
    for tensor in configured:
        name = tensor["name"]
        if not 0 <= places[name] < len(program.inputs):
            raise refusal(model, f"input '{name}' refers to an input index which doesn't exist")
        found = program.inputs[places[name]].tensor
        if found is not None and "dims" in tensor:
            check_tensor(model, "input", tensor, {name: found}, is_exact=False)
    return places


def all_inputs(model: ModelContext) -> list[dict[str, Any]]:
    """Those of the configuration, and those that the server adds for sequences."""
    batching = model.config.get("sequence_batching") or {}
    inputs = [*model.config.get("input", [])]
    inputs += [
        {"name": control["name"], "data_type": control_type(control["control"][0])}
        for control in batching.get("control_input", [])
    ]
    return inputs + [{"name": state["input_name"], "data_type": state["data_type"]} for state in states_of(model)]


def states_of(model: ModelContext) -> list[dict[str, Any]]:
    states: list[dict[str, Any]] = (model.config.get("sequence_batching") or {}).get("state", [])
    return states


def control_type(control: dict[str, Any]) -> str:
    """The configuration's type of an input for START, READY, END or CORRID."""
    for values, data_type in (
        ("int32_false_true", "TYPE_INT32"),
        ("fp32_false_true", "TYPE_FP32"),
        ("bool_false_true", "TYPE_BOOL"),
    ):
        if control.get(values):
            return data_type
    return str(control["data_type"])


def kserve_name(data_type: str) -> str:
    """Of a configuration's name (TYPE_FP32)."""
    name = data_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name
