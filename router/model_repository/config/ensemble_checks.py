"""What is refused of an ensemble when it is read: its steps must lead from its inputs to its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_repository.config.backends import ENSEMBLE
from slipstream.router.model_repository.config.config_fault import ConfigFault

STEP = "ensemble_scheduling.step"
MAX_STEPS = 1000  # checks and plans take a time that grows with their square


@dataclass(slots=True)
class EnsembleTensor:
    """`sources` are the tensors that the step which writes it reads; `is_read`: by a step that writes something.
    `is_ready`: it can be computed from the inputs of the ensemble."""

    name: str
    is_written: bool = False
    is_read: bool = False
    is_ready: bool = False
    sources: list[EnsembleTensor] = field(default_factory=list)


def ensemble_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    """The faults of each step come first; without them, those of the flow of tensors."""
    name = config.name
    if config.platform != ENSEMBLE:
        text = f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}"
        yield ConfigFault("platform", text)
    if config.instance_group:
        text = f"instance group should not be specified for ensemble '{name}'"
        yield ConfigFault("instance_group", text)
    if config.HasField("optimization"):
        yield ConfigFault("optimization", f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        yield ConfigFault("model_warmup", f"model_warmup can not be specified for ensemble '{name}'")
    if not config.ensemble_scheduling.step:
        yield ConfigFault(STEP, f"must specify 'step' for ensemble '{name}'")
        return
    num_steps = len(config.ensemble_scheduling.step)
    if num_steps > MAX_STEPS:
        yield ConfigFault(STEP, f"ensemble '{name}' has {num_steps} steps; there may be {MAX_STEPS}")
        return
    tensors: dict[str, EnsembleTensor] = {}
    faults = list(_step_faults(config, tensors))
    yield from faults or _flow_faults(config, tensors)


def _step_faults(config: ModelConfig, tensors: dict[str, EnsembleTensor]) -> Iterator[ConfigFault]:
    """Fills `tensors` on the way."""
    for index, step in enumerate(config.ensemble_scheduling.step):
        missing = [key for key in ("model_name", "input_map", "output_map") if not getattr(step, key)]
        for key in missing[:1]:
            text = f"must specify '{key}' in step {index} of ensemble '{config.name}'"
            yield ConfigFault(f"{STEP}[{index}].{key}", text)
        written = [tensors.setdefault(name, EnsembleTensor(name)) for name in step.output_map.values()]
        for tensor in written:
            if tensor.is_written:
                text = (
                    f"ensemble tensor '{tensor.name}' can appear in an output map only once for ensemble "
                    f"'{config.name}' step {index}"
                )
                yield ConfigFault(f"{STEP}[{index}].output_map", text)
            tensor.is_written = True
        for name in step.input_map.values():
            source = tensors.setdefault(name, EnsembleTensor(name))
            source.is_read = source.is_read or bool(written)
            for tensor in written:
                tensor.sources.append(source)


def _flow_faults(config: ModelConfig, tensors: dict[str, EnsembleTensor]) -> Iterator[ConfigFault]:
    for tensor_input in config.input:
        tensor = tensors.get(tensor_input.name)
        if tensor is None:
            text = f"ensemble input '{tensor_input.name}' for ensemble {config.name}' is not used"
            yield ConfigFault("input", text)
        else:
            tensor.is_ready = True
    _find_ready(tensors)
    for output in config.output:
        tensor = tensors.get(output.name)
        if tensor is None:
            text = f"ensemble output '{output.name}' for ensemble {config.name}' is not used"
            yield ConfigFault("output", text)
        elif not tensor.is_ready:
            text = f"output '{output.name}' for ensemble '{config.name}' is not written{_missing_source(tensor)}"
            yield ConfigFault("output", text)
    outputs = {output.name for output in config.output}
    for tensor in tensors.values():
        if tensor.name not in outputs and not (tensor.is_ready and tensor.is_read):
            text = f"ensemble tensor '{tensor.name}' is unused in ensemble '{config.name}'"
            yield ConfigFault(STEP, text)


def _find_ready(tensors: dict[str, EnsembleTensor]) -> None:
    waiting = [tensor for tensor in tensors.values() if not tensor.is_ready and tensor.sources]
    while True:
        ready = [tensor for tensor in waiting if all(source.is_ready for source in tensor.sources)]
        if not ready:
            return
        for tensor in ready:
            tensor.is_ready = True
        waiting = [tensor for tensor in waiting if not tensor.is_ready]


def _missing_source(output: EnsembleTensor) -> str:
    """The tensor at the beginning of what is missing. A circle ends at the first tensor that was met before."""
    last, seen = output, set[str]()
    while True:
        following = [tensor for tensor in last.sources if not tensor.is_ready and tensor.name not in seen]
        if not following:
            break
        last = following[0]
        seen.add(last.name)
    if last is output:
        return ""
    return f": at least one of its depending tensors, '{last.name}', is not connected"
