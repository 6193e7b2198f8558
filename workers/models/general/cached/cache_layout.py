"""What a model keeps in transformers' `Cache`, found out by running it twice over a few tokens."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec, LayerKv

CACHE_ARGUMENTS = ("past_key_values", "cache_params")  # of a model's forward, the newer name first
KNOWN_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    DynamicIndexedLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    DummyLayer,
)
RUNS = ((4, 1), (7, 2))  # tokens of the chunks of each run: states are equally large after both, keys are not
ALIGNMENT = 16  # bytes, of each state: more than any number has


class NotCachedError(ModelError):
    """The model cannot run with a cache over pages. The text says why."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A state of one sequence: number `index` of its kind in cache layer `layer`. `shape` is without sequences."""

    layer: int
    kind: Literal["conv", "recurrent"]
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def room_bytes(self) -> int:
        """What is kept free for it: that of float32 at least, so that it does not depend on the dtype in which a model
        is loaded. Most states are float32 in any case."""
        of_all = math.prod(self.shape) * max(self.dtype.itemsize, 4)
        return -(-of_all // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """`argument` is the one of the model's forward that takes the cache. `stored` has for each layer of the cache the
    layer of `keys_values` that it is; None: it stores no keys."""

    argument: str
    stored: tuple[int | None, ...]
    keys_values: tuple[LayerKv, ...]
    states: tuple[StateTensor, ...]

    @property
    def state_bytes(self) -> int:
        """Of a sequence; each state begins at a multiple of `ALIGNMENT`."""
        return sum(state.room_bytes for state in self.states)

    @property
    def kv_spec(self) -> KvSpec:
        return KvSpec(self.keys_values, self.state_bytes)


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache of the layers that the model's configuration asks for."""
    return DynamicCache(config=model.config)


def keeps_states(model: PreTrainedModel) -> bool:
    """Whether the cache that its configuration asks for has layers with states beside keys and values."""
    try:
        layers = new_cache(model).layers
    except Exception:  # whatever the class of the configuration raises: then there is no such cache
        return False
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


@torch.inference_mode()
def recorded_layout(model: PreTrainedModel) -> CacheLayout:
    """Runs the model. Raises NotCachedError, and RuntimeError or NotImplementedError if it looks at numbers and is on
    the meta device."""
    parameters = inspect.signature(model.forward).parameters
    argument = next((name for name in CACHE_ARGUMENTS if name in parameters), None)
    if argument is None:
        raise NotCachedError("its forward takes no cache of transformers (past_key_values)")
    caches = [_filled(model, argument, run) for run in RUNS]
    layouts = [_layout(argument, cache, sum(run)) for cache, run in zip(caches, RUNS, strict=True)]
    if layouts[0] != layouts[1]:
        raise NotCachedError("the size of what it keeps of a sequence depends on how many tokens come at a time")
    if not layouts[0].keys_values and not layouts[0].states:
        raise NotCachedError("it keeps nothing in the cache")
    return layouts[0]


def _filled(model: PreTrainedModel, argument: str, chunks: tuple[int, ...]) -> DynamicCache:
    cache, start = new_cache(model), 0
    for num_tokens in chunks:
        tokens = torch.arange(start, start + num_tokens, device=model.device)[None]
        model(input_ids=tokens, **{argument: cache}, use_cache=True)
        start += num_tokens
    return cache


def _layout(argument: str, cache: DynamicCache, num_tokens: int) -> CacheLayout:
    stored: list[int | None] = []
    keys_values: list[LayerKv] = []
    states: list[StateTensor] = []
    for at, layer in enumerate(cache.layers):
        if type(layer) not in KNOWN_LAYERS and not is_block_indexed(layer):
            raise NotCachedError(f"its cache has layers that are not supported ({type(layer).__name__})")
        stored.append(None)
        if isinstance(layer, CacheLayerMixin) and layer.keys is not None:
            stored[-1] = len(keys_values)
            keys_values.append(_layer_kv(layer, num_tokens))
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            states += _states(at, layer)
    return CacheLayout(argument, tuple(stored), tuple(keys_values), tuple(states))


def _layer_kv(layer: CacheLayerMixin, num_tokens: int) -> LayerKv:
    keys, values = layer.keys, layer.values
    assert keys is not None
    assert values is not None
    window = int(layer.sliding_window) if isinstance(layer, DynamicSlidingWindowLayer) else None
    num_kept = num_tokens if window is None else min(num_tokens, window - 1)
    if not keys.ndim == values.ndim == 4 or not keys.shape[:3] == values.shape[:3] == (1, keys.shape[1], num_kept):
        raise NotCachedError(
            f"its cache has keys of shape {tuple(keys.shape)} and values of shape {tuple(values.shape)} "
            f"after {num_tokens} tokens"
        )
    index_keys = index_keys_of(layer)
    index_dim = 0 if index_keys is None else -(-index_keys.shape[-1] // keys.shape[1])
    return LayerKv(keys.shape[1], keys.shape[3], values.shape[3], window, index_dim)


def is_block_indexed(layer: object) -> bool:
    """Whether it is a layer like that of MiniMax M3, which its modelling file defines."""
    return type(layer).__bases__ == (DynamicLayer,) and hasattr(layer, "update_index")


def index_keys_of(layer: CacheLayerMixin) -> Tensor | None:
    """The keys of an indexer, [sequences, ..., tokens, numbers]."""
    keys: Tensor | None = getattr(layer, "idx_keys" if is_block_indexed(layer) else "indexer_keys", None)
    return keys


def _states(at: int, layer: LinearAttentionCacheLayerMixin) -> Iterator[StateTensor]:
    for index, state in layer.conv_states.items():
        if state is not None:
            yield StateTensor(at, "conv", index, tuple(state.shape[1:]), state.dtype)
    for index, state in layer.recurrent_states.items():
        if state is not None:
            yield StateTensor(at, "recurrent", index, tuple(state.shape[1:]), state.dtype)
