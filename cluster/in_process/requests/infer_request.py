"""A request of a program."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError
from slipstream.cluster.in_process.interface.kinds import RequestFlag
from slipstream.cluster.in_process.tensors import tensor as tensors
from slipstream.cluster.in_process.tensors.device import DeviceOrMemoryType
from slipstream.router.tensor_memory.region_pool import INLINE_BYTES
from slipstream.router.tensors import infer_request, tensor

ANY_VERSION = -1


class RequestedModel(Protocol):
    """The model of a request: `Model`."""

    name: str
    version: int

    def of_version(self, version: int) -> RequestedModel: ...


@dataclass
class InferenceRequest:
    """`inputs` are tensors by name: numpy arrays, lists, what has `__dlpack__`, or `Tensor`. Arrays above 64 KiB are
    not copied: leave them unchanged until the response has come.

    `flags` are `RequestFlag`s of a sequence, which `correlation_id` names. `priority` 0 is the model's default;
    `timeout` is in microseconds, 0: none. `output_memory_type` None leaves outputs in host memory. Responses also go to
    `response_queue`: a `queue.SimpleQueue` for `infer`, an `asyncio.Queue` for `async_infer`."""

    model: RequestedModel
    request_id: str | None = None
    flags: int = 0
    correlation_id: int | str | None = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: DeviceOrMemoryType | None = None
    response_queue: queue.SimpleQueue[Any] | asyncio.Queue[Any] | None = None

    def to_router(self) -> infer_request.InferRequest:
        """It, as the router takes it. Raises InvalidArgumentError."""
        for value in self.parameters.values():
            if not isinstance(value, bool | int | float | str):
                raise InvalidArgumentError(f"Unsupported Value. Can't convert {type(value)} to Request Parameter")
        return infer_request.InferRequest(
            self.model.name,
            "" if self.model.version == ANY_VERSION else str(self.model.version),
            id=self.request_id or "",
            inputs=[router_tensor(name, value) for name, value in self.inputs.items()],
            parameters=dict(self.parameters),
            sequence=self._sequence(),
            priority=self.priority,
            timeout_us=self.timeout,
        )

    def _sequence(self) -> infer_request.SequenceFlags | None:
        if self.correlation_id is None and not self.flags:
            return None
        flags = RequestFlag(self.flags)
        return infer_request.SequenceFlags(
            self.correlation_id or 0, RequestFlag.SEQUENCE_START in flags, RequestFlag.SEQUENCE_END in flags
        )


def router_tensor(name: str, value: Any) -> tensor.Tensor:
    """An input as the router takes it. Raises InvalidArgumentError, and UnsupportedError for a device that is not
    there."""
    given = tensors.tensor_of(value).to_host()
    view = given.memory_buffer.view
    data = bytes(view) if len(view) <= INLINE_BYTES else view
    return tensor.Tensor(name, given.data_type.name, tuple(map(int, given.shape)), data)
