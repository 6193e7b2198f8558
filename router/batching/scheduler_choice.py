"""Which scheduler a model has."""

from __future__ import annotations

from slipstream.router.batching.dynamic_batcher import DynamicBatcher
from slipstream.router.batching.scheduler import BatchScheduler
from slipstream.router.batching.sequence_batcher import SequenceBatcher
from slipstream.router.tensors.model_spec import ModelSpec


def scheduler_of(spec: ModelSpec) -> BatchScheduler:
    """Sequences come before dynamic batching, if a model has both."""
    if spec.sequence_batching is not None:
        return SequenceBatcher(spec, spec.sequence_batching)
    return DynamicBatcher.of(spec)


def preserves_ordering(spec: ModelSpec) -> bool:
    """Whether the responses of the model leave in the order of its requests."""
    if spec.sequence_batching is not None:
        return spec.sequence_batching.strategy == "oldest" and spec.sequence_batching.preserve_ordering
    return spec.dynamic_batching is not None and spec.dynamic_batching.preserve_ordering
