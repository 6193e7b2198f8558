"""The schedulers of a `ModelSpec`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy, ModelSequenceBatching

from slipstream.router.model_repository.config.config_fault import ConfigFault, ModelConfigError
from slipstream.router.model_repository.config.data_types import datatype_of
from slipstream.router.model_repository.config.model_files import ModelFolderFiles
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.model_spec import (
    ControlKind,
    DynamicBatching,
    ImplicitStateSpec,
    InitialState,
    QueuePolicy,
    SequenceBatching,
    SequenceControl,
)

CONTROL_KINDS: dict[int, ControlKind] = {
    ModelSequenceBatching.Control.CONTROL_SEQUENCE_START: "START",
    ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY: "READY",
    ModelSequenceBatching.Control.CONTROL_SEQUENCE_END: "END",
    ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID: "CORRID",
}
FALSE_TRUE = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}


def read_dynamic(config: ModelConfig) -> DynamicBatching | None:
    if not config.HasField("dynamic_batching"):
        return None
    batching = config.dynamic_batching
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_read_policy(batching.default_queue_policy),
        priority_queue_policies={
            level: _read_policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )


def read_sequence(config: ModelConfig, files: ModelFolderFiles) -> SequenceBatching | None:
    """Reads files with initial states. Raises ModelConfigError if one cannot be read."""
    if not config.HasField("sequence_batching"):
        return None
    batching = config.sequence_batching
    is_oldest = batching.HasField("oldest")
    return SequenceBatching(
        strategy="oldest" if is_oldest else "direct",
        max_idle_us=batching.max_sequence_idle_microseconds,
        controls=tuple(
            _read_control(control_input.name, control)
            for control_input in batching.control_input
            for control in control_input.control
        ),
        states=tuple(_read_state(state, files) for state in batching.state),
        is_iterative=batching.iterative_sequence,
        max_queue_delay_us=(batching.oldest if is_oldest else batching.direct).max_queue_delay_microseconds,
        minimum_slot_utilization=batching.direct.minimum_slot_utilization,
        max_candidate_sequences=batching.oldest.max_candidate_sequences,
        preferred_batch_sizes=tuple(sorted(set(batching.oldest.preferred_batch_size))),
        preserve_ordering=batching.oldest.preserve_ordering,
    )


def _read_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        max_queue_size=policy.max_queue_size,
        default_timeout_us=policy.default_timeout_microseconds,
        timeout_action="DELAY" if policy.timeout_action == ModelQueuePolicy.DELAY else "REJECT",
        allow_timeout_override=policy.allow_timeout_override,
    )


def _read_control(name: str, control: ModelSequenceBatching.Control) -> SequenceControl:
    kind = CONTROL_KINDS[control.kind]
    if kind == "CORRID":
        return SequenceControl(name, kind, datatype_of(control.data_type, "sequence_batching.control_input"))
    field = next(field for field in FALSE_TRUE if getattr(control, field))
    false, true = getattr(control, field)
    return SequenceControl(name, kind, FALSE_TRUE[field], (false, true))


def _read_state(state: ModelSequenceBatching.State, files: ModelFolderFiles) -> ImplicitStateSpec:
    initial = None
    for value in state.initial_state[:1]:
        datatype = datatype_of(value.data_type, "sequence_batching.state.initial_state")
        data = None
        if value.WhichOneof("state_data") == "data_file":
            data = _whole_state(value.data_file, files.initial_state(value.data_file), datatype, value.dims)
        initial = InitialState(datatype, tuple(value.dims), data)
    return ImplicitStateSpec(
        state.input_name,
        state.output_name,
        datatype_of(state.data_type, "sequence_batching.state"),
        tuple(state.dims),
        initial,
    )


def _whole_state(file: str, data: bytes, datatype: str, dims: Sequence[int]) -> bytes:
    """Raises ModelConfigError if the file is too short for the shape."""
    element_bytes = DATATYPES[datatype].element_bytes
    if element_bytes is None:
        return data
    num_bytes = element_bytes * math.prod(dims)
    if len(data) < num_bytes:
        text = (
            f"initial_state setting expects {num_bytes} bytes, but the data provided from {file}only has {len(data)} "
            "bytes."
        )
        raise ModelConfigError(ConfigFault("sequence_batching.state.initial_state.data_file", text))
    return data[:num_bytes]
