"""Requests and responses of the backend `vllm`: a text in, its continuations out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.language_backends.forms.completed_tensors import add_missing, tensor_config
from slipstream.router.language_backends.forms.request_values import RequestValues
from slipstream.router.language_backends.forms.vllm_answer import VllmAnswer
from slipstream.router.language_backends.generation.tensor_generation import RowRequest, TensorGeneration
from slipstream.router.language_backends.settings.sampling_parameters import boolean, json_object, sampling_fields
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import ModelSpec

RETURNS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
FLAGS = ("stream", "exclude_input_in_output", *(f"return_{name}" for name in RETURNS))
INPUTS = (
    tensor_config("text_input", "TYPE_STRING", 1),
    tensor_config("image", "TYPE_STRING", -1, is_optional=True),
    tensor_config("stream", "TYPE_BOOL", 1, is_optional=True),
    tensor_config("sampling_parameters", "TYPE_STRING", 1, is_optional=True),
    *(tensor_config(name, "TYPE_BOOL", 1, is_optional=True) for name in FLAGS[1:]),
    tensor_config("embedding_request", "TYPE_STRING", 1, is_optional=True),
)
OUTPUTS = (
    tensor_config("text_output", "TYPE_STRING", -1),
    tensor_config("finish_reason", "TYPE_STRING", -1),
    tensor_config("cumulative_logprob", "TYPE_FP32", -1),
    tensor_config("logprobs", "TYPE_STRING", -1),
    tensor_config("num_input_tokens", "TYPE_UINT32", 1),
    tensor_config("num_output_tokens", "TYPE_UINT32", -1),
)
NO_PROMPT_IN_STREAM = "When streaming, `exclude_input_in_output` = False is not allowed."


class VllmForm:
    """RequestForm. `defaults` are the parameters of sampling that the model's configuration sets."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._defaults = defaults
        self._is_batched = False

    def complete(self, config: dict[str, Any]) -> None:
        add_missing(config, "input", INPUTS)
        add_missing(config, "output", OUTPUTS)
        config["model_transaction_policy"] = {"decoupled": True}

    def bind(self, spec: ModelSpec) -> None:
        self._is_batched = spec.max_batch_size > 0

    def read(self, active: ActiveRequest) -> TensorGeneration:
        request = active.request
        values, parameters = RequestValues(request, active.batch_size), request.parameters
        for name in ("image", "embedding_request"):
            if len(values.row(name, 0)):
                raise InferError(f"'{name}' is not served: the model takes text and generates text")
        flags = {name: flag(name, values, parameters) for name in FLAGS}
        is_streamed = bool(flags["stream"])
        excludes = flags["exclude_input_in_output"]
        prepends = not (is_streamed if excludes is None else excludes)
        if prepends and is_streamed:
            raise InferError(NO_PROMPT_IN_STREAM)
        wanted = frozenset(name for name in RETURNS if flags[f"return_{name}"])
        rows = [self._row(active, values, row, wanted) for row in range(active.batch_size)]
        prefixes = [row.fields["prompt"] if prepends else "" for row in rows]
        asked = {output.name for output in request.requested}
        num_top = self._parameters(active, values, 0).get("logprobs")
        answer = VllmAnswer(
            prefixes,
            wanted & asked if asked else wanted,
            not asked or "text_output" in asked,
            self._is_batched,
            None if num_top is None else int(num_top),
        )
        return TensorGeneration(rows, is_streamed, answer)

    def failure(self, error: InferError) -> InferError:
        return InferError(f"Error generating stream: {error.message}", error.code, error.reason)

    def _row(self, active: ActiveRequest, values: RequestValues, row: int, wanted: frozenset[str]) -> RowRequest:
        fields = sampling_fields(self._parameters(active, values, row))
        given = fields.get("logprobs")
        if given == 0 or (given is None and "cumulative_logprob" in wanted):
            fields["logprobs"] = 1  # the best token tells the rank of the chosen one
        return RowRequest({**fields, "prompt": values.text("text_input", row)})

    def _parameters(self, active: ActiveRequest, values: RequestValues, row: int) -> dict[str, Any]:
        """As the client and the configuration have them. Raises InferError."""
        given: Any = {name: value for name, value in active.request.parameters.items() if name not in FLAGS}
        if values.one("sampling_parameters", row):
            given = json_object("sampling_parameters", values.text("sampling_parameters", row))
        return {**self._defaults, **given}


def flag(name: str, values: RequestValues, parameters: Mapping[str, Any]) -> bool | None:
    """An input of the first row or, where there is none, a parameter: an ensemble passes those on, but no inputs that
    it does not map. None: neither. Raises InferError."""
    if name in values:
        return bool(values.one(name, 0))
    if name not in parameters:
        return None
    try:
        return bool(boolean(parameters[name]))
    except ValueError:
        raise InferError(f"parameter '{name}' cannot be read, got {parameters[name]!r}") from None
