"""Requests with arrays to a served repository, and the arrays of their first responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.router.tensors.infer_request import InferRequest, InferResponse, RequestedOutput, SequenceFlags
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.repository_lab import TIMEOUT_S, Answers, RepositoryLab

DTYPES: dict[str, Any] = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64, "FP64": np.float64}
DATATYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
Array = np.ndarray[Any, Any]


class ArrayAnswers(Answers):
    """ResponseReceiver: the outputs by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, Array] = {}

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        for tensor in response.outputs:
            array = np.frombuffer(bytes(tensor.view), DTYPES[tensor.datatype]).reshape(tensor.shape)
            self.arrays[tensor.name] = array
        super().respond(response, is_final=is_final)


async def infer_arrays(
    lab: RepositoryLab,
    model: str,
    inputs: dict[str, Array],
    wanted: Sequence[str] = (),
    sequence: SequenceFlags | None = None,
) -> dict[str, Array]:
    """Raises InferError."""
    answers = ArrayAnswers()
    tensors = [Tensor(name, DATATYPES[array.dtype], array.shape, array.tobytes()) for name, array in inputs.items()]
    requested = tuple(RequestedOutput(name) for name in wanted)
    lab.service.submit(InferRequest(model, inputs=tensors, requested=requested, sequence=sequence), answers)
    async with asyncio.timeout(TIMEOUT_S):
        await answers.ended.wait()
    if answers.error is not None:
        raise answers.error
    return answers.arrays
