"""The steps of an ensemble as a graph: which tensors lead to which steps, and what a request for some outputs needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slipstream.router.tensors.infer_request import RequestedOutput
from slipstream.router.tensors.model_spec import EnsembleStep, ModelSpec

MAX_PLANS = 64  # that are remembered


@dataclass(frozen=True, slots=True)
class GraphStep:
    """One model of an ensemble. `inputs` are pairs: an input of the model, and the tensor of the ensemble. `outputs`
    has the ensemble's tensor for each output. `reads` are the tensors of its inputs, each once, as `needs` are, and
    `writes` those of its outputs. `dims` are those of the model's inputs, without the batch dimension, which there is
    if it `batches`."""

    index: int
    model: str
    version: str
    inputs: tuple[tuple[str, str], ...]
    outputs: Mapping[str, str]
    requested: tuple[RequestedOutput, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    needs: frozenset[str]
    dims: Mapping[str, tuple[int, ...]]
    batches: bool
    is_decoupled: bool

    @classmethod
    def of(cls, index: int, step: EnsembleStep, model: ModelSpec) -> GraphStep:
        return cls(
            index,
            step.model,
            step.model_version,
            inputs=tuple(step.inputs.items()),
            outputs=step.outputs,
            requested=tuple(RequestedOutput(name) for name in step.outputs),
            reads=tuple(dict.fromkeys(step.inputs.values())),
            writes=tuple(step.outputs.values()),
            needs=frozenset(step.inputs.values()),
            dims={tensor.name: tensor.dims for tensor in model.inputs},
            batches=model.max_batch_size > 0,
            is_decoupled=model.is_decoupled,
        )


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a request for some `outputs` runs, which it `needs`. `readers` has the steps that read a tensor. `num_reads`
    is how many of them there are, and one more for an output, which the client reads."""

    outputs: tuple[str, ...]
    needs: frozenset[str]
    readers: Mapping[str, tuple[GraphStep, ...]]
    num_reads: Mapping[str, int]


class EnsembleGraph:
    """Of one version. `models` are those of its steps, in their order. `output_dims` are those that clients are
    promised, as its steps see them (before `reshape`)."""

    def __init__(self, spec: ModelSpec, models: Sequence[ModelSpec]) -> None:
        self.name = spec.name
        self.batches = spec.max_batch_size > 0
        self.is_decoupled = spec.is_decoupled
        self.optional_inputs = tuple(tensor.name for tensor in spec.inputs if tensor.is_optional)
        self.output_dims = {tensor.name: tensor.reshape or tensor.dims for tensor in spec.outputs}
        pairs = enumerate(zip(spec.steps, models, strict=True))
        self.steps = tuple(GraphStep.of(index, step, model) for index, (step, model) in pairs)
        self._writers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        self._plans: dict[frozenset[str], RunPlan] = {}

    def plan(self, requested: Sequence[RequestedOutput]) -> RunPlan:
        """Of a request for these outputs; () are all."""
        wanted = frozenset(output.name for output in requested) or frozenset(self.output_dims)
        plan = self._plans.get(wanted)
        if plan is None:
            plan = self._new_plan(wanted)
            if len(self._plans) < MAX_PLANS:
                self._plans[wanted] = plan
        return plan

    def _new_plan(self, wanted: Collection[str]) -> RunPlan:
        outputs = tuple(name for name in self.output_dims if name in wanted)
        needed = self._needed(outputs)
        readers: dict[str, list[GraphStep]] = {}
        for step in needed:
            for tensor in step.reads:
                readers.setdefault(tensor, []).append(step)
        num_reads = {tensor: len(steps) for tensor, steps in readers.items()}
        for name in outputs:
            num_reads[name] = num_reads.get(name, 0) + 1
        return RunPlan(
            outputs, frozenset(outputs), {tensor: tuple(steps) for tensor, steps in readers.items()}, num_reads
        )

    def _needed(self, outputs: Sequence[str]) -> list[GraphStep]:
        """The steps that these outputs depend on, in their order."""
        tensors, seen = list(outputs), set[int]()
        while tensors:
            step = self._writers.get(tensors.pop())
            if step is not None and step.index not in seen:
                seen.add(step.index)
                tensors += step.reads
        return [step for step in self.steps if step.index in seen]
