"""Which scheduler a model has."""

from __future__ import annotations

from slipstream.router.batching.dynamic_batcher import DynamicBatcher
from slipstream.router.batching.scheduler import Scheduler
from slipstream.router.tensors.model_spec import ModelSpec


def scheduler_of(spec: ModelSpec) -> Scheduler:
    return DynamicBatcher.of(spec)
