"""The defaults of a configuration that are not those of the protobuf message."""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

SEQUENCE_IDLE_US = 1_000_000
TWO_ON_CPU = {"tensorflow", "onnxruntime"}  # backends with two instances on CPUs by default
ON_CPU_ONLY = {"openvino", "fil"}  # which do not compute on GPUs here


def set_defaults(config: ModelConfig) -> None:
    """Also after completion: it may have set a scheduler, or the batch size."""
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching") and not config.dynamic_batching.preferred_batch_size:
        _prefer_full_batches(config, config.dynamic_batching.preferred_batch_size)
    if config.HasField("sequence_batching"):
        batching = config.sequence_batching
        if batching.max_sequence_idle_microseconds == 0:
            batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_US
        if batching.HasField("oldest") and not batching.oldest.preferred_batch_size:
            _prefer_full_batches(config, batching.oldest.preferred_batch_size)
    if config.HasField("ensemble_scheduling"):
        config.model_transaction_policy.SetInParent()
    else:
        for buffer in ("input_pinned_memory", "output_pinned_memory"):
            if not config.optimization.HasField(buffer):
                getattr(config.optimization, buffer).enable = True


def set_instance_groups(config: ModelConfig, devices: Sequence[int]) -> None:
    """`devices` are the GPUs that instances may run on."""
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            has_gpus = bool(devices) and set(group.gpus) <= set(devices) and config.backend not in ON_CPU_ONLY
            group.kind = ModelInstanceGroup.KIND_GPU if has_gpus else ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            on_cpu = group.kind == ModelInstanceGroup.KIND_CPU
            group.count = 2 if on_cpu and config.backend in TWO_ON_CPU else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(devices)


def _prefer_full_batches(config: ModelConfig, preferred: list[int]) -> None:
    if config.max_batch_size > 0:
        preferred.append(config.max_batch_size)
