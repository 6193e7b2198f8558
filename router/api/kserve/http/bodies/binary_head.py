"""Heads of bodies whose inputs all follow in binary: the same ones come again and again, and are read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipstream.router.api.kserve.http.bodies.output_form import OutputForm
from slipstream.router.tensors.infer_request import InferRequest, ParameterValue, RequestedOutput, SequenceFlags

MAX_HEAD_BYTES = 2048  # longer ones are not remembered
MAX_HEADS = 1024


@dataclass(frozen=True, slots=True)
class BinaryInput:
    name: str
    datatype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BinaryHead:
    """What such a head says."""

    inputs: tuple[BinaryInput, ...]
    requested: tuple[RequestedOutput, ...]
    parameters: dict[str, ParameterValue]
    sequence: SequenceFlags | None
    priority: int
    timeout_us: int
    form: OutputForm

    def fill(self, request: InferRequest) -> None:
        """All but its inputs."""
        request.requested = self.requested
        request.parameters = dict(self.parameters)
        request.sequence = self.sequence
        request.priority = self.priority
        request.timeout_us = self.timeout_us


class BinaryHeads:
    """By their bytes. A head with an id is not remembered, because it will hardly come again."""

    def __init__(self) -> None:
        self._heads: dict[bytes, BinaryHead] = {}

    def get(self, head: memoryview) -> BinaryHead | None:
        return self._heads.get(head.tobytes()) if len(head) <= MAX_HEAD_BYTES else None

    def remember(self, head: memoryview, fields: Any, request: InferRequest, form: OutputForm) -> None:
        """`request` was read from `fields`."""
        if request.id or len(head) > MAX_HEAD_BYTES or any(output.into is not None for output in request.requested):
            return
        sizes: list[int] = []
        for given in fields["inputs"]:
            size = (given.get("parameters") or {}).get("binary_data_size")
            if size is None:
                return
            sizes.append(size)
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[head.tobytes()] = BinaryHead(
            tuple(
                BinaryInput(tensor.name, tensor.datatype, tensor.shape, size)
                for tensor, size in zip(request.inputs, sizes, strict=True)
            ),
            request.requested,
            dict(request.parameters),
            request.sequence,
            request.priority,
            request.timeout_us,
            form,
        )
