"""The models of a tensor campaign: what they compute is known, and the executions of a sequence are written down."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HEAD = (
    "import os\nimport threading\nimport time\n\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n"
)
ANSWER_EACH = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]
"""
SCALE = """
    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCALED", values * 2 + 1)])
"""
SUMS = """
class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "ROWS").as_numpy() for request in requests]
        sums = np.concatenate(rows).sum(axis=1, keepdims=True)
        parts = np.split(sums, np.cumsum([len(one) for one in rows])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SUM", part)]) for part in parts]
"""
COUNT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            first, count, delay_ms = pb_utils.get_input_tensor_by_name(request, "RANGE").as_numpy().tolist()
            sender = request.get_response_sender()
            threading.Thread(target=self.count, args=(sender, first, count, delay_ms / 1e3), daemon=True).start()

    def count(self, sender, first, count, delay_s):
        for value in range(first, first + count):
            if sender.is_cancelled():
                break
            time.sleep(delay_s)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("VALUE", np.array([value], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TOTAL = """
    def initialize(self, args):
        self.journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.totals = {}

    def answer(self, request):
        value, step, is_start, is_end, is_ready, sequence = (
            int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().item())
            for name in ("VALUE", "STEP", "START", "END", "READY", "CORRID")
        )
        if not is_ready:  # a place of the direct strategy without a request
            return pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", np.zeros((1, 1), np.int64))])
        os.write(self.journal, f"{sequence} {step} {os.getpid()}\\n".encode())
        total = value if is_start else self.totals[sequence] + value
        if is_end:
            self.totals.pop(sequence, None)
        else:
            self.totals[sequence] = total
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", np.array([[total]], np.int64))])
"""
CALLER = """
    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        for _ in range(2):
            inputs = [pb_utils.Tensor("VALUES", values)]
            call = pb_utils.InferenceRequest(model_name="scale", requested_output_names=["SCALED"], inputs=inputs)
            response = call.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            values = pb_utils.get_output_tensor_by_name(response, "SCALED").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCALED", values)])
"""
CHANGING = """
    def initialize(self, args):
        import json
        self.value = int(json.loads(args["model_config"])["parameters"]["value"]["string_value"])
        pb_utils.Logger.log_info(f"serves {self.value} in process {os.getpid()}")

    def answer(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("VALUE", np.array([self.value], np.int32))])
"""
VALUES = """
input { name: "VALUES" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "SCALED" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SEQUENCES = """
max_batch_size: 4
input [ { name: "VALUE" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "STEP" data_type: TYPE_INT64 dims: [ 1 ] } ]
output { name: "TOTAL" data_type: TYPE_INT64 dims: [ 1 ] }
instance_group { count: 2 kind: KIND_CPU }
sequence_batching {
  max_sequence_idle_microseconds: 20000000
  %s
  control_input [
    { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
    { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } },
    { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } },
    { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  ]
}
"""
CHANGING_JSON = {  # its parameter is what it answers
    "name": "changing",
    "backend": "python",
    "input": [{"name": "ANY", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "VALUE", "data_type": "TYPE_INT32", "dims": [1]}],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}
CHANGING_CONFIG = """
input { name: "ANY" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] }
parameters { key: "value" value { string_value: "0" } }
"""
MODELS = {  # name -> configuration, code
    "scale": (f"{VALUES} instance_group {{ count: 2 kind: KIND_CPU }}", ANSWER_EACH + SCALE),
    "sums": (
        """
max_batch_size: 16
input { name: "ROWS" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }
dynamic_batching { max_queue_delay_microseconds: 1000 }
instance_group { count: 1 kind: KIND_CPU }
""",
        SUMS,
    ),
    "count": (
        """
input { name: "RANGE" data_type: TYPE_INT32 dims: [ 3 ] }
output { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] }
model_transaction_policy { decoupled: true }
instance_group { count: 1 kind: KIND_CPU }
""",
        COUNT,
    ),
    "oldest": (SEQUENCES % "oldest { max_candidate_sequences: 8 }", ANSWER_EACH + TOTAL),
    "direct": (SEQUENCES % "direct { }", ANSWER_EACH + TOTAL),
    "caller": (f"{VALUES} instance_group {{ count: 1 kind: KIND_CPU }}", ANSWER_EACH + CALLER),
    "changing": (f"{CHANGING_CONFIG} instance_group {{ count: 1 kind: KIND_CPU }}", ANSWER_EACH + CHANGING),
}
CHAIN = f"""
platform: "ensemble"
{VALUES}
ensemble_scheduling {{
  step {{ model_name: "scale" model_version: -1
    input_map {{ key: "VALUES" value: "VALUES" }} output_map {{ key: "SCALED" value: "once" }} }}
  step {{ model_name: "scale" model_version: -1
    input_map {{ key: "VALUES" value: "once" }} output_map {{ key: "SCALED" value: "SCALED" }} }}
}}
"""
SEQUENCE_MODELS = ("oldest", "direct")


def write_models(folder: Path, journals: Path) -> None:
    """`journals` gets a file for each sequence model: a line for each execution of a request, with its correlation id,
    its number in the sequence and the process."""
    journals.mkdir(parents=True)
    for name, (config, code) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(f'backend: "python"\n{config}')
        journal = f"JOURNAL = {str(journals / name)!r}\n"
        (folder / name / "1" / "model.py").write_text(HEAD + journal + code)
    (folder / "chain" / "1").mkdir(parents=True)
    (folder / "chain" / "config.pbtxt").write_text(CHAIN)


def executions(journals: Path, model: str) -> list[tuple[int, int]]:
    """Correlation id and number of each request that a sequence model has executed, in their order."""
    file = journals / model
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(sequence), int(step)) for sequence, step, _ in map(str.split, lines)]


def scaled(values: np.ndarray) -> np.ndarray:
    return values * 2 + 1
