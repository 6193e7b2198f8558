"""States of sequences, wherever a model keeps them between calls: in layers of a `Cache`, in a cache of its own, in a
list that it takes and returns, or on its modules."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicCache, LinearAttentionCacheLayerMixin

ALIGNMENT = 16  # bytes, of each state: more than any number has

Kind = Literal["conv", "recurrent", "linear", "rnn", "list", "module"]


@dataclass(slots=True)
class StateList:
    """What a model takes and returns as a list of states (RWKV); None before its first token."""

    tensors: list[Tensor] | None = None
    layers: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A state of one sequence: number `index` of its kind in layer `layer`. `shape` is without sequences. A state on a
    module is the attribute `name` of the module number `layer`."""

    layer: int
    kind: Kind
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str = ""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def room_bytes(self) -> int:
        """What is kept free for it: that of float32 at least, so that it does not depend on the dtype in which a model
        is loaded. Most states are float32 in any case."""
        of_all = math.prod(self.shape) * max(self.dtype.itemsize, 4)
        return -(-of_all // ALIGNMENT) * ALIGNMENT


def new_cache(model: PreTrainedModel, argument: str = "past_key_values") -> Any:
    """An empty cache, of a class of the model's own if its file has one, else of the layers that its configuration asks
    for."""
    if argument == "state":
        return StateList()
    own = _own_cache(model, argument)
    if own is None:
        return DynamicCache(config=model.config)
    if issubclass(own, DynamicCache):
        cache = own()
        if hasattr(cache, "linear_cache"):  # else it would look for states of all layers that we give it
            cache.linear_cache = [None] * model.config.num_hidden_layers
        return cache
    return own(model.config, max_batch_size=1, dtype=model.dtype, device=model.device)


def forget_states(model: PreTrainedModel) -> None:
    """Of sequences that were computed before, where the model keeps them on its modules."""
    for module, name in _on_modules(model):
        setattr(module, name, None)


def states_in(model: PreTrainedModel, cache: Any) -> Iterator[tuple[Kind, int, int, str, Tensor]]:
    """Kind, layer, index, name and value [sequences, ...] of all states after a call."""
    if isinstance(cache, StateList):
        yield from (("list", 0, index, "", value) for index, value in enumerate(cache.tensors or ()))
        return
    for at, layer in enumerate(getattr(cache, "layers", ())):
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for index, value in layer.conv_states.items():
                if value is not None:
                    yield "conv", at, index, "", value
            for index, value in layer.recurrent_states.items():
                if value is not None:
                    yield "recurrent", at, index, "", value
    for at, value in enumerate(getattr(cache, "linear_cache", ())):
        if isinstance(value, Tensor):
            yield "linear", at, 0, "", value
    for at, values in getattr(cache, "rnn_state", {}).items():
        yield from (("rnn", at, index, "", value) for index, value in enumerate(values))
    numbers = {module: number for number, module in enumerate(model.modules())}
    for module, name in _on_modules(model):
        yield "module", numbers[module], 0, name, getattr(module, name)


def get_states(model: PreTrainedModel, cache: Any, states: tuple[StateTensor, ...]) -> list[Tensor]:
    found = {(kind, layer, index, name): value for kind, layer, index, name, value in states_in(model, cache)}
    return [found[state.kind, state.layer, state.index, state.name] for state in states]


def set_state(modules: list[torch.nn.Module], cache: Any, state: StateTensor, value: Tensor) -> None:
    """`modules` are all of the model, in order."""
    match state.kind:
        case "conv" | "recurrent":
            _set_in_layer(cache.layers[state.layer], state, value)
        case "linear":
            cache.set_linear_cache(state.layer, value)
        case "rnn":
            values = list(cache.rnn_state[state.layer])
            values[state.index] = value
            cache.rnn_state[state.layer] = tuple(values)
        case "list":
            cache.tensors = [*(cache.tensors or ())[: state.index], value]
        case "module":
            setattr(modules[state.layer], state.name, value)


def _set_in_layer(layer: Any, state: StateTensor, value: Tensor) -> None:
    layer.has_previous_state[state.index] = True
    if layer.device is None:
        layer.dtype, layer.device = value.dtype, value.device
    if state.kind == "conv":
        layer.conv_states[state.index] = value
        layer.conv_kernel_size[state.index] = value.shape[-1]
        layer.is_conv_states_initialized[state.index] = True
    else:
        layer.recurrent_states[state.index] = value
        layer.is_recurrent_states_initialized[state.index] = True


def _own_cache(model: PreTrainedModel, argument: str) -> type[Any] | None:
    """A class of a whole cache, not of a layer of one, that the model's file defines (MiniMax, xLSTM)."""
    module = sys.modules[type(model).__module__]
    classes = [known for known in vars(module).values() if inspect.isclass(known)]
    own = [known for known in classes if known.__module__ == module.__name__ and known.__name__.endswith("Cache")]
    if argument == "past_key_values":
        own = [known for known in own if issubclass(known, DynamicCache)]
    return next((known for known in own if not issubclass(known, CacheLayerMixin)), None)


def _on_modules(model: PreTrainedModel) -> Iterator[tuple[torch.nn.Module, str]]:
    """Attributes with `state` in their names that hold a tensor, which is no parameter and no buffer."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if "state" in name and isinstance(value, Tensor):
                yield module, name
