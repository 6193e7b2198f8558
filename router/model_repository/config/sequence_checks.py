"""What is refused of sequence batching."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching

from slipstream.router.model_repository.config.config_fault import ConfigFault

CONTROL = ModelSequenceBatching.Control
WILDCARD = -1
BOOLEANS = (CONTROL.CONTROL_SEQUENCE_START, CONTROL.CONTROL_SEQUENCE_END, CONTROL.CONTROL_SEQUENCE_READY)
FALSE_TRUE = ("int32_false_true", "fp32_false_true", "bool_false_true")
ID_TYPES = (
    DataType.TYPE_UINT64,
    DataType.TYPE_INT64,
    DataType.TYPE_UINT32,
    DataType.TYPE_INT32,
    DataType.TYPE_STRING,
)
FIELD = "sequence_batching.control_input"


def sequence_faults(config: ModelConfig, batching: ModelSequenceBatching) -> Iterator[ConfigFault]:
    yield from _control_tensor_faults(config.name, batching)
    for kind in (*BOOLEANS, CONTROL.CONTROL_SEQUENCE_CORRID):
        yield from _control_faults(config.name, batching, kind)
    for size in batching.oldest.preferred_batch_size:
        field = "sequence_batching.oldest.preferred_batch_size"
        if size <= 0:
            text = f"sequence batching preferred batch size must be positive for {config.name}"
            yield ConfigFault(field, text)
        elif size > config.max_batch_size:
            text = f"sequence batching preferred batch size must be <= max batch size for {config.name}"
            yield ConfigFault(field, text)
    if not 0 <= batching.direct.minimum_slot_utilization <= 1:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}"
        yield ConfigFault("sequence_batching.direct.minimum_slot_utilization", text)


def _control_tensor_faults(name: str, batching: ModelSequenceBatching) -> Iterator[ConfigFault]:
    seen: set[str] = set()
    for control_input in batching.control_input:
        if not control_input.name:
            yield ConfigFault(FIELD, f"sequence batching control tensor must have a name for {name}")
        elif control_input.name in seen:
            text = (
                f"sequence batching control tensor '{control_input.name}' is specified for multiple control "
                f"kinds for {name}"
            )
            yield ConfigFault(FIELD, text)
        seen.add(control_input.name)


def _control_faults(name: str, batching: ModelSequenceBatching, kind: int) -> Iterator[ConfigFault]:
    """Of the one control of this kind that there may be."""
    kind_name = CONTROL.Kind.Name(kind)
    controls = [
        control for control_input in batching.control_input for control in control_input.control if control.kind == kind
    ]
    if len(controls) > 1:
        yield ConfigFault(FIELD, f"sequence batching specifies multiple {kind_name} tensors for {name}")
    for control in controls[:1]:
        if kind in BOOLEANS:
            yield from _boolean_faults(name, control, kind_name)
        else:
            yield from _id_faults(name, control, kind_name)


def _boolean_faults(name: str, control: ModelSequenceBatching.Control, kind_name: str) -> Iterator[ConfigFault]:
    given = [field for field in FALSE_TRUE if getattr(control, field)]
    if not given:
        text = (
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {kind_name} for {name}"
        )
        yield ConfigFault(FIELD, text)
    elif len(given) > 1:
        text = (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind_name} for {name}"
        )
        yield ConfigFault(FIELD, text)
    elif len(getattr(control, given[0])) != 2:
        text = f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind_name} for {name}"
        yield ConfigFault(FIELD, text)


def state_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    """Of initial states, at which the load of a version fails."""
    seen: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        field = f"sequence_batching.state[{index}].initial_state"
        if len(state.initial_state) > 1:
            text = (
                f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
            yield ConfigFault(field, text)
        for initial in state.initial_state[:1]:
            yield from (ConfigFault(field, text) for text in _initial_state_faults(state, initial, seen))
            seen.add(state.input_name)


def _initial_state_faults(
    state: ModelSequenceBatching.State, initial: ModelSequenceBatching.InitialState, seen: set[str]
) -> Iterator[str]:
    name = state.input_name
    if initial.data_type != state.data_type:
        yield f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
    if not initial.name:
        yield f"Field 'name' must be set when using initial_state for state input '{name}'."
    if name in seen:
        yield f"State input name '{name}' specified more than once."
    if len(initial.dims) != len(state.dims):
        yield (
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial.dims)} != {len(state.dims)}"
        )
    for size, expected in zip(initial.dims, state.dims, strict=False):
        if size == WILDCARD:
            yield f"'initial_state' field for state input name '{name}' contains variable dimensions."
        elif expected not in (WILDCARD, size):
            yield (
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                f"{size} != {expected}"
            )
    if initial.WhichOneof("state_data") is None:
        yield f"initial_state setting expects state'{name}' to have state_data set"


def _id_faults(name: str, control: ModelSequenceBatching.Control, kind_name: str) -> Iterator[ConfigFault]:
    if any(getattr(control, field) for field in FALSE_TRUE):
        text = (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind_name} for {name}"
        )
        yield ConfigFault(FIELD, text)
    elif control.data_type not in ID_TYPES:
        text = (
            f"unexpected data type for control {kind_name} for {name}. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
        yield ConfigFault(FIELD, text)
