"""What is refused when a configuration is read: of the whole model, its dynamic batching and its instances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelQueuePolicy,
)

from slipstream.router.model_repository.config.backends import ENSEMBLE, LANGUAGE_BACKENDS, backend_faults
from slipstream.router.model_repository.config.config_fault import ConfigFault
from slipstream.router.model_repository.config.ensemble_checks import ensemble_faults
from slipstream.router.model_repository.config.sequence_checks import sequence_faults


def model_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    """All but inputs, outputs and instances, which a model may yet complete. The order is that of the real server,
    which gives the first one only."""
    name = config.name
    yield from _agent_faults(config)
    yield from backend_faults(config)
    if config.max_batch_size < 0:
        yield ConfigFault("max_batch_size", f"'max_batch_size' must be non-negative value for {name}")
    if config.HasField("dynamic_batching"):
        yield from _batching_faults(config, config.dynamic_batching)
    if config.HasField("sequence_batching"):
        if config.response_cache.enable:
            yield _no_cache(name, "sequence batching scheduler")
        yield from sequence_faults(config, config.sequence_batching)
    if config.HasField("ensemble_scheduling"):
        yield from ensemble_faults(config)
    elif config.platform == ENSEMBLE:
        text = f"ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}"
        yield ConfigFault("ensemble_scheduling", text)
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        yield _no_cache(name, "'decoupled' transaction policy")
    yield from _metrics_faults(config)


def name_faults(config: ModelConfig, folder: str) -> Iterator[ConfigFault]:
    """`folder` is the name of the model's folder."""
    if config.name != folder:
        text = f"unexpected directory name '{folder}' for model '{config.name}', directory name must equal model name"
        yield ConfigFault("name", text)


def instance_faults(config: ModelConfig, devices: Sequence[int]) -> Iterator[ConfigFault]:
    """After the defaults of `set_instance_groups`. `devices` are the GPUs that instances may run on."""
    if config.HasField("ensemble_scheduling") or config.backend in LANGUAGE_BACKENDS:
        return  # none of these instances is started here
    for index, group in enumerate(config.instance_group):
        field = f"instance_group[{index}]"
        subject = f"instance group {group.name} of model {config.name}"
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        if group.kind != ModelInstanceGroup.KIND_GPU and group.gpus:
            yield ConfigFault(f"{field}.gpus", f"{subject} has kind {kind} but specifies one or more GPUs")
        if group.kind == ModelInstanceGroup.KIND_GPU and not devices:
            yield ConfigFault(f"{field}.kind", f"{subject} has kind KIND_GPU but no GPUs are available")
        elif group.kind == ModelInstanceGroup.KIND_GPU:
            for device in sorted(set(group.gpus) - set(devices)):
                known = ", ".join(map(str, devices))
                text = (
                    f"{subject} specifies invalid or unsupported gpu id {device}. GPUs with at least the minimum "
                    f"required CUDA compute compatibility are: {known}"
                )
                yield ConfigFault(f"{field}.gpus", text)
        if group.profile and config.platform != "tensorrt_plan":
            text = f"{subject} and platform {config.platform}specifies profile field which is only supported for "
            yield ConfigFault(f"{field}.profile", f"{text}TensorRT models")


def _agent_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    """Of agents, which are libraries in C: a model is not served without what one of them would have checked."""
    for agent in config.model_repository_agents.agents:
        text = f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent '{agent.name}'"
        yield ConfigFault("model_repository_agents", text)


def _no_cache(name: str, what: str) -> ConfigFault:
    text = f"Response Cache does not currently support model {name} with {what}. Please disable the response cache."
    return ConfigFault("response_cache.enable", text)


def _batching_faults(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[ConfigFault]:
    name, levels = config.name, batching.priority_levels
    for size in batching.preferred_batch_size:
        field = "dynamic_batching.preferred_batch_size"
        if size <= 0:
            yield ConfigFault(field, f"dynamic batching preferred size must be positive for {name}")
        elif size > config.max_batch_size:
            yield ConfigFault(field, f"dynamic batching preferred size must be <= max batch size for {name}")
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            text = f"default priority level must be in range [1, {levels}] for {name}"
            yield ConfigFault("dynamic_batching.default_priority_level", text)
        if not all(1 <= level <= levels for level in batching.priority_queue_policy):
            text = f"priority queue policy must have priority level in range [1, {levels}] for {name}"
            yield ConfigFault("dynamic_batching.priority_queue_policy", text)
    if batching.preserve_ordering:
        yield from _ordering_faults(name, batching)


def _ordering_faults(name: str, batching: ModelDynamicBatching) -> Iterator[ConfigFault]:
    if batching.priority_levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        yield ConfigFault("dynamic_batching.preserve_ordering", text)
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.DELAY:
            text = f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            yield ConfigFault("dynamic_batching.preserve_ordering", text)


def _metrics_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    for index, control in enumerate(config.model_metrics.metric_control):
        field = f"model_metrics.metric_control[{index}]"
        if not control.HasField("metric_identifier"):
            yield ConfigFault(field, "metric control must specify 'metric_identifier'")
        elif not control.metric_identifier.family:
            yield ConfigFault(field, "metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            yield ConfigFault(field, "metric control must specify 'histogram_options'")
        elif not control.histogram_options.buckets:
            yield ConfigFault(field, "histogram options must specify non-empty 'buckets'")
