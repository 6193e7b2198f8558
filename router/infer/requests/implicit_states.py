"""Implicit state: outputs of one request that are inputs of the next one of its sequence."""

from __future__ import annotations

from slipstream.router.batching.scheduler import BatchScheduler
from slipstream.router.batching.sequence_batcher import SequenceBatcher
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.instances.messages import InstanceResponse
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.model_spec import ModelSpec, SequenceBatching


class ImplicitStates:
    """Each execution is asked for the outputs `names`. A client sees one of them only if it is an output of the
    configuration as well, and the request asks for it."""

    def __init__(self, spec: ModelSpec, batching: SequenceBatching, batcher: SequenceBatcher) -> None:
        self.names = tuple(state.output_name for state in batching.states)
        self._outputs = frozenset(tensor.name for tensor in spec.outputs)
        self._batcher = batcher

    @classmethod
    def of(cls, spec: ModelSpec, scheduler: BatchScheduler) -> ImplicitStates | None:
        """None: the model has none."""
        batching = spec.sequence_batching
        if batching is None or not batching.states or not isinstance(scheduler, SequenceBatcher):
            return None
        return cls(spec, batching, scheduler)

    def keep(self, active: ActiveRequest, response: InstanceResponse) -> None:
        """Copies the states out of a response, before the scheduler hears that its execution is over. A request that
        has failed leaves the states as they were."""
        if response.error is None:
            self._batcher.store_states(active, response.outputs)
        response.outputs = [tensor for tensor in response.outputs if self._is_shown(tensor.name, active.request)]

    def _is_shown(self, name: str, request: InferRequest) -> bool:
        if name not in self.names:
            return True
        is_asked = not request.requested or any(output.name == name for output in request.requested)
        return is_asked and name in self._outputs
