"""Models for a server within a program."""

from __future__ import annotations

from pathlib import Path

HEAD = """
import json, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

def value_of(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

"""

# Gives back what it gets, of several datatypes, and the parameters.
ANY = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [pb_utils.Tensor(one.name().replace("input", "output"), one.as_numpy())
                       for one in request.inputs()]
            outputs.append(pb_utils.Tensor("parameters", np.array([request.parameters()], dtype=object)))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
ANY_CONFIG = "\n".join(
    [
        *(
            f'input {{ name: "{kind}_input" data_type: TYPE_{kind.upper()} dims: [ -1, -1 ] optional: true }} '
            f'output {{ name: "{kind}_output" data_type: TYPE_{kind.upper()} dims: [ -1, -1 ] }}'
            for kind in ("fp16", "bool", "string", "fp32")
        ),
        'output { name: "parameters" data_type: TYPE_STRING dims: [ 1 ] }',
    ]
)

# As many responses as it is asked for, each when the file that its name gives is there, then an empty last one.
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, gate = request.get_response_sender(), value_of(request, "GATE")[0].decode()
            for number in range(int(value_of(request, "COUNT")[0])):
                while gate and not os.path.exists(gate + str(number)):
                    if request.is_cancelled():
                        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                        return None
                    time.sleep(0.002)
                text = np.array([f"token {number}".encode()], dtype=object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""
STREAM_CONFIG = """
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] } ]
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
"""

# The sum of a sequence.
SUM = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        responses = []
        for request in requests:
            key, flags = request.correlation_id(), request.flags()
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[key] = 0
            self.sums[key] = self.sums.get(key, 0) + int(value_of(request, "VALUE")[0, 0])  # 0: an empty place
            total = np.array([[self.sums[key]]], dtype=np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)]))
        return responses
"""
SUM_CONFIG = """
max_batch_size: 4
sequence_batching {}
input { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }
"""

# Fails as its input says.
FAULTY = """
class TritonPythonModel:
    def execute(self, requests):
        text = value_of(requests[0], "HOW")[0].decode()
        if text == "raise":
            raise ValueError("on request")
        error = pb_utils.TritonError(text, pb_utils.TritonError.UNAVAILABLE)
        return [pb_utils.InferenceResponse(error=error)]
"""
FAULTY_CONFIG = """
input { name: "HOW" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""

# Gives an array through two models.
CHAIN_CONFIG = """
input { name: "IN" data_type: TYPE_FP32 dims: [ -1, -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1, -1 ] }
ensemble_scheduling {
  step { model_name: "any" model_version: -1
         input_map { key: "fp32_input" value: "IN" } output_map { key: "fp32_output" value: "between" } }
  step { model_name: "any" model_version: -1
         input_map { key: "fp32_input" value: "between" } output_map { key: "fp32_output" value: "OUT" } }
}
"""
MODELS = {
    "any": (ANY_CONFIG, ANY),
    "stream": (STREAM_CONFIG, STREAM),
    "sum": (SUM_CONFIG, SUM),
    "faulty": (FAULTY_CONFIG, FAULTY),
}


def write_model(repository: Path, name: str, config: str, code: str) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "python"\n{config}')
    (folder / "model.py").write_text(HEAD + code)


def write_ensemble(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'platform: "ensemble"\n{config}')


def write_models(repository: Path, *names: str) -> None:
    for name in names or MODELS:
        write_model(repository, name, *MODELS[name])
