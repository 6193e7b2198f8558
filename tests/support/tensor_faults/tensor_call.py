"""One inference, whatever protocol it is asked over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

DATATYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}
DTYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorCall:
    model: str
    inputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, int | bool] = field(default_factory=dict)


class Refused(Exception):  # noqa: N818 - names what was done
    """The server has answered with an error. `code` is HTTP's status or the name of gRPC's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class TensorClient(Protocol):
    """`infer` raises Refused, or OSError where the connection broke. `leave` sends a request and goes away."""

    protocol: str

    async def infer(self, call: TensorCall) -> dict[str, np.ndarray]: ...
    async def leave(self, call: TensorCall, after_s: float) -> None: ...
    async def close(self) -> None: ...
