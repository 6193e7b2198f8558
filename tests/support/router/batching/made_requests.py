"""Models and requests for tests of the batchers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slipstream.router.batching.scheduler import QueuedRequest, RequestBatch
from slipstream.router.tensors.infer_request import InferRequest, SequenceFlags
from slipstream.router.tensors.model_spec import DynamicBatching, ModelSpec, SequenceBatching, TensorSpec
from slipstream.router.tensors.tensor import Tensor


def spec_of(
    max_batch_size: int = 0,
    inputs: tuple[TensorSpec, ...] = (),
    dynamic_batching: DynamicBatching | None = None,
    sequence_batching: SequenceBatching | None = None,
) -> ModelSpec:
    return ModelSpec(
        name="m",
        version="1",
        folder=Path("/models/m"),
        backend="python",
        platform="",
        max_batch_size=max_batch_size,
        inputs=inputs or (TensorSpec("X", "FP32", (1,)),),
        outputs=(TensorSpec("Y", "FP32", (1,)),),
        config_json=b"{}",
        dynamic_batching=dynamic_batching,
        sequence_batching=sequence_batching,
    )


def queued(
    id: str,
    num_rows: int = 1,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    sequence: SequenceFlags | None = None,
    priority: int = 0,
    timeout_us: int = 0,
    tenant: str = "",
) -> QueuedRequest:
    """A request whose inputs have the given shapes, with the batch dimension; their bytes are missing."""
    request = InferRequest(
        model="m",
        id=id,
        inputs=[Tensor(name, "FP32", shape, b"") for name, shape in (shapes or {"X": (num_rows, 1)}).items()],
        sequence=sequence,
        priority=priority,
        timeout_us=timeout_us,
        tenant=tenant,
    )
    return QueuedRequest(request, num_rows)


def ids(batch: RequestBatch | None) -> list[str]:
    """Of the requests of a batch; no batch has none."""
    return [] if batch is None else [request.request.id for request in batch.requests]


def places(batch: RequestBatch | None) -> list[str | None]:
    """The ids of the requests of a batch by place; None: an empty one."""
    items = batch.items if batch is not None else ()
    return [item.request.request.id if item.request is not None else None for item in items]


def step(
    name: str,
    *,
    start: bool = False,
    end: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    timeout_us: int = 0,
    tenant: str = "",
) -> QueuedRequest:
    """A request of the sequence that is called `name`, a letter; its id is the code of the letter."""
    flags = SequenceFlags(ord(name), is_start=start, is_end=end)
    return queued(name, shapes=shapes, sequence=flags, timeout_us=timeout_us, tenant=tenant)
