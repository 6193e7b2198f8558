"""A repository as users of TensorRT-LLM have it: text to tokens, the language model, tokens to text, the three as an
ensemble, and a Python model that calls them."""

from __future__ import annotations

from pathlib import Path

from tests.support.router.fake_cluster import MODEL_DIR

PREPROCESSING = """
name: "preprocessing" backend: "python" max_batch_size: 8
input [
  { name: "QUERY" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "REQUEST_OUTPUT_LEN" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "BAD_WORDS_DICT" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "STOP_WORDS_DICT" data_type: TYPE_STRING dims: [ -1 ] optional: true }
]
output [
  { name: "INPUT_ID" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "REQUEST_INPUT_LEN" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "REQUEST_OUTPUT_LEN" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "BAD_WORDS_IDS" data_type: TYPE_INT32 dims: [ 2, -1 ] },
  { name: "STOP_WORDS_IDS" data_type: TYPE_INT32 dims: [ 2, -1 ] }
]
parameters { key: "tokenizer_dir" value: { string_value: "TOKENIZER" } }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
PREPROCESSING_CODE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

class TritonPythonModel:
    def initialize(self, args):
        folder = json.loads(args["model_config"])["parameters"]["tokenizer_dir"]["string_value"]
        self.tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")

    def words(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        texts = [] if tensor is None else [text.decode() for text in tensor.as_numpy().flatten() if text]
        lists = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        ids = [token for ids in lists for token in ids] or [0]
        ends = np.cumsum([len(ids) for ids in lists]).tolist()
        return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]], np.int32)

    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy().flatten()[0].decode()
            ids = self.tokenizer.encode(text).ids
            outputs = {
                "INPUT_ID": np.array([ids], np.int32),
                "REQUEST_INPUT_LEN": np.array([[len(ids)]], np.int32),
                "REQUEST_OUTPUT_LEN": pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy(),
                "BAD_WORDS_IDS": self.words(request, "BAD_WORDS_DICT"),
                "STOP_WORDS_IDS": self.words(request, "STOP_WORDS_DICT"),
            }
            tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""
LANGUAGE_MODEL = """
name: "tensorrt_llm" backend: "tensorrtllm" max_batch_size: 8
model_transaction_policy { decoupled: true }
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 0 }
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "stop_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true allow_ragged_batch: true },
  { name: "bad_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true allow_ragged_batch: true },
  { name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] },
  { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "cum_log_probs" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "context_logits" data_type: TYPE_FP32 dims: [ -1, -1 ] }
]
parameters: { key: "max_beam_width" value: { string_value: "1" } }
parameters: { key: "gpt_model_type" value: { string_value: "inflight_fused_batching" } }
parameters: { key: "gpt_model_path" value: { string_value: "ENGINE" } }
parameters: { key: "max_tokens_in_paged_kv_cache" value: { string_value: "2560" } }
parameters: { key: "batch_scheduler_policy" value: { string_value: "guaranteed_no_evict" } }
parameters: { key: "exclude_input_in_output" value: { string_value: "true" } }
parameters: { key: "medusa_choices" value: { string_value: "${medusa_choices}" } }
"""
POSTPROCESSING = """
name: "postprocessing" backend: "python" max_batch_size: 8
input [
  { name: "TOKENS_BATCH" data_type: TYPE_INT32 dims: [ -1, -1 ] },
  { name: "SEQUENCE_LENGTH" data_type: TYPE_INT32 dims: [ -1 ] }
]
output [ { name: "OUTPUT" data_type: TYPE_STRING dims: [ -1 ] } ]
parameters { key: "tokenizer_dir" value: { string_value: "TOKENIZER" } }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
POSTPROCESSING_CODE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

class TritonPythonModel:
    def initialize(self, args):
        folder = json.loads(args["model_config"])["parameters"]["tokenizer_dir"]["string_value"]
        self.tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")

    def execute(self, requests):
        responses = []
        for request in requests:
            batch = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
            lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
            texts = [
                [self.tokenizer.decode(ids[:length].tolist()).encode() for ids, length in zip(row, row_lengths)]
                for row, row_lengths in zip(batch, lengths)
            ]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array(texts, np.object_))]))
        return responses
"""
ENSEMBLE = """
name: "ensemble" platform: "ensemble" max_batch_size: 8
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "bad_words" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "cum_log_probs" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "context_logits" data_type: TYPE_FP32 dims: [ -1, -1 ] }
]
ensemble_scheduling { step [
  {
    model_name: "preprocessing" model_version: -1
    input_map { key: "QUERY" value: "text_input" }
    input_map { key: "REQUEST_OUTPUT_LEN" value: "max_tokens" }
    input_map { key: "BAD_WORDS_DICT" value: "bad_words" }
    input_map { key: "STOP_WORDS_DICT" value: "stop_words" }
    output_map { key: "INPUT_ID" value: "_INPUT_ID" }
    output_map { key: "REQUEST_INPUT_LEN" value: "_REQUEST_INPUT_LEN" }
    output_map { key: "REQUEST_OUTPUT_LEN" value: "_REQUEST_OUTPUT_LEN" }
    output_map { key: "BAD_WORDS_IDS" value: "_BAD_WORDS_IDS" }
    output_map { key: "STOP_WORDS_IDS" value: "_STOP_WORDS_IDS" }
  },
  {
    model_name: "tensorrt_llm" model_version: -1
    input_map { key: "input_ids" value: "_INPUT_ID" }
    input_map { key: "input_lengths" value: "_REQUEST_INPUT_LEN" }
    input_map { key: "request_output_len" value: "_REQUEST_OUTPUT_LEN" }
    input_map { key: "bad_words_list" value: "_BAD_WORDS_IDS" }
    input_map { key: "stop_words_list" value: "_STOP_WORDS_IDS" }
    input_map { key: "runtime_top_k" value: "top_k" }
    input_map { key: "streaming" value: "stream" }
    output_map { key: "output_ids" value: "_TOKENS_BATCH" }
    output_map { key: "sequence_length" value: "_SEQUENCE_LENGTH" }
    output_map { key: "cum_log_probs" value: "cum_log_probs" }
    output_map { key: "context_logits" value: "context_logits" }
  },
  {
    model_name: "postprocessing" model_version: -1
    input_map { key: "TOKENS_BATCH" value: "_TOKENS_BATCH" }
    input_map { key: "SEQUENCE_LENGTH" value: "_SEQUENCE_LENGTH" }
    output_map { key: "OUTPUT" value: "text_output" }
  }
] }
"""
CALLER = """
name: "tensorrt_llm_bls" backend: "python" max_batch_size: 8
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
parameters: { key: "tensorrt_llm_model_name" value: { string_value: "tensorrt_llm" } }
"""
CALLER_CODE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.model = parameters["tensorrt_llm_model_name"]["string_value"]

    def call(self, model, outputs, tensors, **options):
        request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=outputs,
            inputs=[pb_utils.Tensor(name, array) for name, array in tensors.items()])
        return request.exec(**options)

    def checked(self, response):
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def execute(self, requests):
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            names = ["INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN"]
            query = {"QUERY": given["text_input"], "REQUEST_OUTPUT_LEN": given["max_tokens"]}
            before = self.checked(self.call("preprocessing", names, query))
            tensors = {"input_ids": before[names[0]], "input_lengths": before[names[1]]}
            tensors["request_output_len"] = before[names[2]]
            tensors["streaming"] = given.get("stream", np.array([[False]]))
            sender = request.get_response_sender()
            for response in self.call(self.model, ["output_ids", "sequence_length"], tensors, decoupled=True):
                outputs = self.checked(response)
                if outputs:
                    tokens = {"TOKENS_BATCH": outputs["output_ids"], "SEQUENCE_LENGTH": outputs["sequence_length"]}
                    text = self.checked(self.call("postprocessing", ["OUTPUT"], tokens))["OUTPUT"]
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""


def write_inflight_family(folder: Path, engine: str) -> None:
    """`engine` is what the language model's configuration names."""
    models = {
        "preprocessing": (PREPROCESSING, PREPROCESSING_CODE),
        "tensorrt_llm": (LANGUAGE_MODEL, ""),
        "postprocessing": (POSTPROCESSING, POSTPROCESSING_CODE),
        "ensemble": (ENSEMBLE, ""),
        "tensorrt_llm_bls": (CALLER, CALLER_CODE),
    }
    for name, (config, code) in models.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        filled = config.replace("TOKENIZER", str(MODEL_DIR)).replace("ENGINE", engine)
        (folder / name / "config.pbtxt").write_text(filled)
        if code:
            (version / "model.py").write_text(code)
