"""Ensembles of small models, as tests need them: integers go through steps that add to them."""

from __future__ import annotations

from collections.abc import Mapping

Step = tuple[str, Mapping[str, str], Mapping[str, str]]  # the model, its inputs, its outputs
ONE_IN = 'input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }'
ONE_OUT = 'output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }'
PLAIN = f"{ONE_IN} {ONE_OUT}"
DECOUPLED = f"{PLAIN} model_transaction_policy {{ decoupled: true }}"
TWO_IN = f'input {{ name: "A" data_type: TYPE_INT32 dims: [ -1 ] }} {ONE_OUT} '
SUM = TWO_IN + 'input { name: "B" data_type: TYPE_INT32 dims: [ -1 ] }'
SUM_OF_SOME = TWO_IN + 'input { name: "B" data_type: TYPE_INT32 dims: [ -1 ] optional: true }'

ADD_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = value_of(request)
            if value.ravel()[0] == 13:
                error = pb_utils.TritonError("thirteen", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                responses.append(response(value + 1))
        return responses
"""
ADD_UP = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            other = pb_utils.get_input_tensor_by_name(request, "B")
            responses.append(response(value_of(request, "A") + (0 if other is None else other.as_numpy())))
        return responses
"""
COUNT_UP = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(value_of(request)[0]):
                sender.send(response([number]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def ensemble(*steps: Step, tensors: str = PLAIN, more: str = "") -> tuple[str, str]:
    """Configuration and (no) code of an ensemble."""
    texts = []
    for model, inputs, outputs in steps:
        maps = mapped("input_map", inputs) + mapped("output_map", outputs)
        texts.append(f'step {{ model_name: "{model}" model_version: -1 {maps} }}')
    return f"{tensors} ensemble_scheduling {{ {' '.join(texts)} }} {more}", ""


def mapped(name: str, tensors: Mapping[str, str]) -> str:
    return " ".join(f'{name} {{ key: "{key}" value: "{value}" }}' for key, value in tensors.items())


def chain(*models: str, tensors: str = PLAIN, more: str = "") -> tuple[str, str]:
    """An ensemble of models with the input IN and the output OUT, one after the other."""
    names = ["IN", *(f"t{number}" for number in range(1, len(models))), "OUT"]
    steps: list[Step] = [(model, {"IN": names[index]}, {"OUT": names[index + 1]}) for index, model in enumerate(models)]
    return ensemble(*steps, tensors=tensors, more=more)
