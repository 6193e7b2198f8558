"""What a model may complete in its configuration."""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_repository.config.config_fault import ConfigFault, ModelConfigError
from slipstream.router.model_repository.config.defaults import set_defaults
from slipstream.router.tensors.infer_error import InferErrorCode

SCHEDULERS = "scheduling_choice"


def completed_config(config: ModelConfig, completed: ModelConfig) -> ModelConfig:
    """The configuration with what the model has set in its copy: batch size, inputs, outputs, a scheduler if there was
    none, decoupled. What it has changed elsewhere does not count. Raises ModelConfigError."""
    merged = ModelConfig()
    merged.CopyFrom(config)
    merged.max_batch_size = completed.max_batch_size
    for tensors in ("input", "output"):
        merged.ClearField(tensors)
        getattr(merged, tensors).MergeFrom(getattr(completed, tensors))
    _merge_scheduler(merged, completed)
    if completed.HasField("model_transaction_policy"):
        merged.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled
    set_defaults(merged)
    return merged


def _merge_scheduler(merged: ModelConfig, completed: ModelConfig) -> None:
    old, new = merged.WhichOneof(SCHEDULERS), completed.WhichOneof(SCHEDULERS)
    if old is None and new is not None:
        getattr(merged, new).CopyFrom(getattr(completed, new))
    elif old != new:
        text = f"Cannot update scheduling choice from {old} to {new} when auto-completing."
        raise ModelConfigError(ConfigFault(str(old), text, InferErrorCode.INTERNAL))
