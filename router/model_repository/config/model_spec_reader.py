"""The `ModelSpec` of a complete configuration."""

from __future__ import annotations

from typing import Literal

from tritonclient.grpc.model_config_pb2 import (
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelWarmup,
)

from slipstream.router.model_repository.config.config_json import to_json
from slipstream.router.model_repository.config.data_types import datatype_of
from slipstream.router.model_repository.config.model_files import ModelFolderFiles
from slipstream.router.model_repository.config.scheduling_reader import read_dynamic, read_sequence
from slipstream.router.tensors.model_spec import (
    EnsembleStep,
    InstanceGroup,
    ModelSpec,
    RateResource,
    TensorSpec,
    WarmupInput,
    WarmupSample,
)

WARMUP_SOURCES: dict[str, Literal["zero", "random", "file"]] = {
    "zero_data": "zero",
    "random_data": "random",
    "input_data_file": "file",
}


def read_spec(config: ModelConfig, version: str, versions: tuple[str, ...], files: ModelFolderFiles) -> ModelSpec:
    """The configuration is checked, and has all its defaults. Reads files with labels and initial states. Raises
    ModelConfigError if one cannot be read."""
    return ModelSpec(
        name=config.name,
        version=version,
        folder=files.folder,
        backend=config.backend,
        platform=config.platform or config.backend,
        max_batch_size=config.max_batch_size,
        inputs=tuple(_read_input(tensor) for tensor in config.input),
        outputs=tuple(_read_output(tensor, files) for tensor in config.output),
        config_json=to_json(config),
        versions=versions,
        model_file=config.default_model_filename,
        is_decoupled=config.model_transaction_policy.decoupled,
        dynamic_batching=read_dynamic(config),
        sequence_batching=read_sequence(config, files),
        instance_groups=read_groups(config),
        warmup=tuple(_read_sample(sample, files) for sample in config.model_warmup),
        parameters=read_parameters(config),
        uses_response_cache=config.response_cache.enable,
        steps=read_steps(config),
        max_step_requests=config.ensemble_scheduling.max_inflight_requests,
    )


def read_parameters(config: ModelConfig) -> dict[str, str]:
    return {key: parameter.string_value for key, parameter in config.parameters.items()}


def read_steps(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    return tuple(
        EnsembleStep(
            step.model_name,
            "" if step.model_version < 1 else str(step.model_version),
            dict(step.input_map),
            dict(step.output_map),
        )
        for step in config.ensemble_scheduling.step
    )


def read_groups(config: ModelConfig) -> tuple[InstanceGroup, ...]:
    return tuple(_read_group(group) for group in config.instance_group)


def _read_group(group: ModelInstanceGroup) -> InstanceGroup:
    limiter = group.rate_limiter
    return InstanceGroup(
        name=group.name,
        count=group.count,
        kind=ModelInstanceGroup.Kind.Name(group.kind),
        devices=tuple(group.gpus),
        rate_resources=tuple(
            RateResource(resource.name, resource.count, getattr(resource, "global")) for resource in limiter.resources
        ),
        rate_priority=limiter.priority,
        is_passive=group.passive,
    )


def _read_input(tensor: ModelInput) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        datatype=datatype_of(tensor.data_type, "input"),
        dims=tuple(tensor.dims),
        reshape=_reshape(tensor),
        is_optional=tensor.optional,
        is_ragged=tensor.allow_ragged_batch,
    )


def _read_output(tensor: ModelOutput, files: ModelFolderFiles) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        datatype=datatype_of(tensor.data_type, "output"),
        dims=tuple(tensor.dims),
        reshape=_reshape(tensor),
        labels=files.labels(tensor.name, tensor.label_filename) if tensor.label_filename else (),
    )


def _reshape(tensor: ModelInput | ModelOutput) -> tuple[int, ...] | None:
    return tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None


def _read_sample(sample: ModelWarmup, files: ModelFolderFiles) -> WarmupSample:
    inputs = tuple(_read_warmup_input(name, value, files) for name, value in sample.inputs.items())
    return WarmupSample(sample.name, sample.batch_size, max(1, sample.count), inputs)


def _read_warmup_input(name: str, value: ModelWarmup.Input, files: ModelFolderFiles) -> WarmupInput:
    choice = value.WhichOneof("input_data_type")
    if choice is None:
        raise files.refusal("model_warmup", f"warmup setting expects input '{name}' to have input_data_type set")
    if -1 in value.dims:
        text = f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        raise files.refusal("model_warmup", text)
    if choice == "input_data_file":
        files.check_warmup_file(value.input_data_file)
    datatype = datatype_of(value.data_type, "model_warmup")
    return WarmupInput(name, datatype, tuple(value.dims), WARMUP_SOURCES[choice], value.input_data_file)
