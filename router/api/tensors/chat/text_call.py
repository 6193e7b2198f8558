"""One answer of a model that takes and gives text."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from slipstream.router.api.tensors.chat.served_fields import parameters_of
from slipstream.router.api.tensors.models.endpoint_errors import invalid
from slipstream.router.api.tensors.models.model_caller import ModelCaller
from slipstream.router.api.tensors.models.model_tensors import TEXT, ModelTensors
from slipstream.router.api.tensors.models.row_layout import RowLayout
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.api.tensors.text.text_source import text_array
from slipstream.router.config.endpoints_config import ChatEndpoint
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.model_spec import TensorSpec

TEXT_INPUTS = ("text_input", "prompt", "query", "question", "input")
TEXT_OUTPUTS = ("text_output", "response", "answer", "text", "output")
OTHER_OUTPUTS = {  # roles, and how the models of the vllm backend call them
    "finish_reason": ("finish_reason",),
    "prompt_tokens": ("prompt_tokens", "num_input_tokens"),
    "completion_tokens": ("completion_tokens", "num_output_tokens"),
}
# Inputs of the vllm backend, by which it says more, and only the answer.
WITHOUT_PROMPT = "exclude_input_in_output"
SWITCHES = (WITHOUT_PROMPT, "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
REASONS = ("stop", "length")

EndReason = Literal["stop", "length"]


class TextPiece(NamedTuple):
    """What one response adds. `prompt_tokens` is of the whole prompt, `completion_tokens` of this piece; None: the
    model does not say."""

    text: str
    reason: EndReason | None
    prompt_tokens: int | None
    completion_tokens: int | None


class TextCall:
    """Raises HttpError if the configuration does not fit the model."""

    def __init__(self, model: ModelCaller, config: ChatEndpoint, tensors: ModelTensors, layout: RowLayout) -> None:
        self._model = model
        self._tensors = tensors
        self._layout = layout
        self._text = tensors.text_input("text", TEXT_INPUTS)
        self.takes_system = tensors.input_of("system") is not None
        key = "outputs.text"
        self._output = tensors.output(config.outputs.get("text", ""), frozenset({TEXT}), TEXT_OUTPUTS, key)
        self._others = {role: found for role in OTHER_OUTPUTS if (found := self._other(role, config)) is not None}

    async def pieces(
        self, prompt: str, fields: Mapping[str, Any], *, streams: bool, system: str = ""
    ) -> AsyncGenerator[TextPiece, None]:
        """The answer, as it comes. A decoupled model that cannot leave the prompt out of a whole answer streams it to a
        client that does not: the pieces of a stream are of the answer alone."""
        spec = self._model.spec
        streams = streams or (spec.is_decoupled and self._tensors.input_of(WITHOUT_PROMPT) is None)
        inputs = {self._text.name: self._layout.placed(self._text, text_array([prompt]))}
        left = dict(fields)
        for role, value in {**fields, "stream": streams, "system": system}.items():
            tensor = self._tensors.input_of(role)
            if tensor is not None:
                left.pop(role, None)
                inputs[tensor.name] = self._array(tensor, value, role)
        for name in SWITCHES:
            tensor = next((one for one in spec.inputs if one.name == name), None)
            if tensor is not None and tensor.datatype == "BOOL" and tensor.name not in inputs:
                inputs[name] = self._array(tensor, True, name)
        wanted = [self._output.name, *self._others.values()]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async with contextlib.aclosing(self._model.stream(inputs, wanted, dict(parameters_of(left)))) as responses:
            async for outputs in responses:
                yield self._piece(outputs, decoder)
        if rest := decoder.decode(b"", final=True):
            yield TextPiece(rest, None, None, None)

    def _piece(self, outputs: Mapping[str, Array], decoder: codecs.IncrementalDecoder) -> TextPiece:
        elements = outputs[self._output.name].ravel() if self._output.name in outputs else ()
        reason = self._first(outputs, "finish_reason")
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else None
        prompt, completion = (self._first(outputs, role) for role in ("prompt_tokens", "completion_tokens"))
        return TextPiece(
            decoder.decode(b"".join(elements)),
            cast(EndReason, said) if said in REASONS else None,
            None if prompt is None else int(prompt),
            None if completion is None else int(completion),
        )

    def _first(self, outputs: Mapping[str, Array], role: str) -> Any:
        found = outputs.get(self._others.get(role, ""))
        return None if found is None or not found.size else found.ravel()[0]

    def _array(self, tensor: TensorSpec, value: Any, param: str) -> Array:
        """Raises HttpError 400 for a number that the input cannot take."""
        values = value if isinstance(value, list) else [value]
        if tensor.datatype == TEXT:
            array = text_array([str(one) for one in values])
        else:
            try:
                array = np.array(values, DATATYPES[tensor.datatype].numpy_name or np.float32)
            except (OverflowError, ValueError) as error:
                raise invalid(param, f"must fit an input of {tensor.datatype}, got {value!r}") from error
        return self._layout.placed(tensor, array[None] if isinstance(value, list) else array)

    def _other(self, role: str, config: ChatEndpoint) -> str | None:
        name = config.outputs.get(role)
        if name is not None:
            return self._tensors.named(name, self._model.spec.outputs, "output").name
        names = [output.name for output in self._model.spec.outputs]
        return next((known for known in OTHER_OUTPUTS[role] if known in names), None)
