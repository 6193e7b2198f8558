"""The enumerations of the API, with Triton's names and numbers."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class DataType(IntEnum):
    """Of the elements of a tensor; the names are those of KServe."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


class MemoryType(IntEnum):
    """Where the elements of a tensor lie."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class DLDeviceType(IntEnum):
    """DLPack's names of devices, of those that tensors may lie on."""

    kDLCPU = 1  # noqa: N815 - DLPack's names
    kDLCUDA = 2  # noqa: N815
    kDLCUDAHost = 3  # noqa: N815


class ModelControlMode(IntEnum):
    """NONE: all models are loaded at the start. POLL: also, and `poll_model_repository` loads what has changed.
    EXPLICIT: the models of `startup_models`, and what `load` is called for."""

    NONE = 0
    POLL = 1
    EXPLICIT = 2


class RateLimitMode(IntEnum):
    OFF = 0
    EXEC_COUNT = 1


class InstanceGroupKind(IntEnum):
    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class LogFormat(IntEnum):
    DEFAULT = 0
    ISO8601 = 1


class MetricFormat(IntEnum):
    PROMETHEUS = 0


class MetricKind(IntEnum):
    COUNTER = 0
    GAUGE = 1


class ModelBatchFlag(IntFlag):
    """FIRST_DIM: the first dimension of each tensor is the batch."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(IntFlag):
    """ONE_TO_ONE: each request has one response. DECOUPLED: any number."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


class RequestFlag(IntFlag):
    """`flags` of a request of a sequence."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2
