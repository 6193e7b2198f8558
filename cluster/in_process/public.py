"""The names that a program finds in `slipstream`."""

from __future__ import annotations

from slipstream.cluster.in_process.interface.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from slipstream.cluster.in_process.interface.kinds import (
    DataType,
    DLDeviceType,
    InstanceGroupKind,
    LogFormat,
    MemoryType,
    MetricFormat,
    MetricKind,
    ModelBatchFlag,
    ModelControlMode,
    ModelTxnPropertyFlag,
    RateLimitMode,
    RequestFlag,
)
from slipstream.cluster.in_process.interface.options import ModelLoadDeviceLimit, Options, RateLimiterResource
from slipstream.cluster.in_process.interface.program_metrics import Metric, MetricFamily
from slipstream.cluster.in_process.model import Model
from slipstream.cluster.in_process.model_dictionary import ModelDictionary
from slipstream.cluster.in_process.requests.infer_request import InferenceRequest
from slipstream.cluster.in_process.requests.infer_response import InferenceResponse
from slipstream.cluster.in_process.requests.response_iterators import AsyncResponseIterator, ResponseIterator
from slipstream.cluster.in_process.server import Server
from slipstream.cluster.in_process.tensors.memory_buffer import MemoryBuffer
from slipstream.cluster.in_process.tensors.tensor import Tensor

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "LogFormat",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "RequestFlag",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]
