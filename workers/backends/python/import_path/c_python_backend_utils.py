"""The classes of the API, under the name that Triton has for the module that holds them."""

from slipstream.workers.backends.python.model_api.infer_request import InferenceRequest
from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.logger import Logger
from slipstream.workers.backends.python.model_api.metrics import Metric, MetricFamily, MetricKind
from slipstream.workers.backends.python.model_api.model_control import is_model_ready, load_model, unload_model
from slipstream.workers.backends.python.model_api.preferences import InferenceTrace, MemoryType, PreferredMemory
from slipstream.workers.backends.python.model_api.response_iterator import ResponseIterator
from slipstream.workers.backends.python.model_api.response_sender import InferenceResponseSender
from slipstream.workers.backends.python.model_api.tensors.errors import TritonError, TritonModelException
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor

TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "unload_model",
]
