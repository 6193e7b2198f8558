"""One inference, whatever protocol it is asked over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from tritonclient.utils import deserialize_bytes_tensor

DATATYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "bool": "BOOL"}
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


class WrongAnswerError(Exception):
    """What was answered is not what had to be."""


def check(found: np.ndarray, wanted: np.ndarray) -> None:
    if not np.array_equal(found, wanted):
        raise WrongAnswerError(f"{found.shape} {found.ravel()[:4]} instead of {wanted.shape} {wanted.ravel()[:4]}")


def array_of(raw: bytes, datatype: str, shape: Sequence[int]) -> np.ndarray:
    """Of strings, bytes objects."""
    if datatype == "BYTES":
        return deserialize_bytes_tensor(raw).reshape(shape)
    return np.frombuffer(raw, DTYPES[datatype]).reshape(shape)
