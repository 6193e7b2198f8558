"""Python models with the names, inputs and outputs that the example programs of Triton's client library ask for."""

from __future__ import annotations

from pathlib import Path

PAIR = """
    @staticmethod
    def auto_complete_config(config):
        for name in ("INPUT0", "INPUT1"):
            config.add_input({"name": name, "data_type": "%s", "dims": [16]})
        for name in ("OUTPUT0", "OUTPUT1"):
            config.add_output({"name": name, "data_type": "%s", "dims": [16]})
        if config.as_dict()["max_batch_size"] == 0:
            config.set_max_batch_size(8)
        return config
"""
SUM_AND_DIFFERENCE = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
%s
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", %s), pb_utils.Tensor("OUTPUT1", %s)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
NUMBERS = ("a + b", "a - b")
TEXTS = tuple(f"((a.astype(np.int64) {sign} b.astype(np.int64)).astype(str)).astype(np.object_)" for sign in "+-")
IDENTITY = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
            )
            for request in requests
        ]
"""
# The input; one more at the start of a sequence. With an id as control, that is added at its end.
SEQUENCE = """import numpy as np
import triton_python_backend_utils as pb_utils


def value_of(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return 0 if tensor is None else int(tensor.as_numpy().reshape(-1)[0])


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        self.accumulates = args["model_name"] == "simple_string_dyna_sequence"

    def execute(self, requests):
        responses = []
        for request in requests:
            value, correlation_id = value_of(request, "INPUT"), value_of(request, "CORRID")
            if self.accumulates:
                value += 0 if value_of(request, "START") else self.sums.get(correlation_id, 0)
                self.sums[correlation_id] = value
            else:
                value += value_of(request, "START")
            value += correlation_id if value_of(request, "END") else 0
            output = pb_utils.Tensor("OUTPUT", np.array([[value]], np.int32))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
REPEAT = """import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def respond(sender, values, delays, wait):
    for index, (value, delay) in enumerate(zip(values, delays)):
        time.sleep(delay / 1000)
        values_out = pb_utils.Tensor("OUT", np.array([value], np.int32))
        index_out = pb_utils.Tensor("IDX", np.array([index], np.uint32))
        sender.send(pb_utils.InferenceResponse([values_out, index_out]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values, delays, wait = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "DELAY", "WAIT")
            )
            arguments = (request.get_response_sender(), values, delays, wait)
            threading.Thread(target=respond, args=arguments).start()
            time.sleep(float(wait[0]) / 1000)
        return None
"""
CONTROL = 'control_input [ { name: "%s" control [ { kind: CONTROL_SEQUENCE_%s %s } ] } ]\n'
FALSE_TRUE = "int32_false_true: [ 0, 1 ]"
STARTS = CONTROL % ("START", "START", FALSE_TRUE) + CONTROL % ("READY", "READY", FALSE_TRUE)
ENDS = CONTROL % ("END", "END", FALSE_TRUE) + CONTROL % ("CORRID", "CORRID", "data_type: TYPE_UINT64")
ENDS_WITH_TEXT = CONTROL % ("END", "END", FALSE_TRUE) + CONTROL % ("CORRID", "CORRID", "data_type: TYPE_STRING")
ONE_NUMBER = (
    'input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
    'output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
)
OLDEST = "oldest { max_candidate_sequences: 64 max_queue_delay_microseconds: 1000 }\n"
BATCHES = "max_batch_size: 8\n"
PLAIN = 'backend: "python"\n'
MODELS = {
    "simple": (PLAIN, SUM_AND_DIFFERENCE % (PAIR % ("TYPE_INT32", "TYPE_INT32"), *NUMBERS)),
    "simple_int8": (PLAIN, SUM_AND_DIFFERENCE % (PAIR % ("TYPE_INT8", "TYPE_INT8"), *NUMBERS)),
    "simple_string": (PLAIN, SUM_AND_DIFFERENCE % (PAIR % ("TYPE_STRING", "TYPE_STRING"), *TEXTS)),
    "simple_identity": (
        PLAIN + BATCHES + 'input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]\n',
        IDENTITY,
    ),
    "simple_sequence": (PLAIN + BATCHES + ONE_NUMBER + "sequence_batching {\n" + STARTS + "}\n", SEQUENCE),
    "simple_dyna_sequence": (
        PLAIN + BATCHES + ONE_NUMBER + "sequence_batching {\n" + OLDEST + STARTS + ENDS + "}\n",
        SEQUENCE,
    ),
    "repeat_int32": (
        PLAIN + 'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 '
        'dims: [ -1 ] }, { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]\noutput [ { name: "OUT" data_type: '
        'TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]\n'
        "model_transaction_policy { decoupled: true }\n",
        REPEAT,
    ),
}
# Beside those: the example of model control counts the models above.
FURTHER_MODELS = {
    "simple_string_dyna_sequence": (
        PLAIN + BATCHES + ONE_NUMBER + "sequence_batching {\n" + OLDEST + STARTS + ENDS_WITH_TEXT + "}\n",
        SEQUENCE,
    ),
}


def write_models(folder: Path, models: dict[str, tuple[str, str]]) -> None:
    """Each below `folder`."""
    for name, (config, code) in models.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        (version / "model.py").write_text(code)
