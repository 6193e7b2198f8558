"""Slipstream: a disaggregated prefill/decode serving cluster for large language models.

`slipstream.Server` serves a repository of models within a program. Its names are those of Triton's Python API for its
server, so that `import slipstream as tritonserver` is all that a program has to change. They are imported when they are
first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.cluster.in_process.public import *  # noqa: F403

__version__ = "0.2.0"

PUBLIC = "slipstream.cluster.in_process.public"
KSERVE_PACKAGES = ("google", "grpc", "tritonclient")
PUBLIC_NAMES = frozenset(
    (
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
    )
)


def __getattr__(name: str) -> Any:
    if name not in PUBLIC_NAMES:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(PUBLIC), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in KSERVE_PACKAGES:
            raise
        text = f"slipstream.{name} needs the extra `kserve` (pip install 'slipstream[kserve]'): no {error.name}"
        raise ModuleNotFoundError(text, name=error.name) from None
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC_NAMES})
