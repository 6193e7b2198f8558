"""What a model keeps in transformers' `Cache`, found out by running it twice over a few tokens."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
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
from slipstream.workers.models.general.cached.states import (
    StateList,
    StateTensor,
    forget_states,
    new_cache,
    states_in,
)

CACHE_ARGUMENTS = ("past_key_values", "cache_params", "state")  # of a model's forward, the newer name first
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


class NotCachedError(ModelError):
    """The model cannot run with a cache over pages. The text says why."""


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


def keeps_states(model: PreTrainedModel) -> bool:
    """Whether the cache that its configuration asks for has layers with states beside keys and values."""
    try:
        layers = DynamicCache(config=model.config).layers
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
    layouts = []
    for run in RUNS:
        cache = _filled(model, argument, run)
        layouts.append(_layout(model, argument, cache, sum(run)))
    forget_states(model)
    if layouts[0] != layouts[1]:
        raise NotCachedError("the size of what it keeps of a sequence depends on how many tokens come at a time")
    if not layouts[0].keys_values and not layouts[0].states:
        raise NotCachedError("it keeps nothing in the cache")
    return layouts[0]


def _filled(model: PreTrainedModel, argument: str, chunks: tuple[int, ...]) -> Any:
    forget_states(model)
    cache, start = new_cache(model, argument), 0
    for num_tokens in chunks:
        tokens = torch.arange(start, start + num_tokens, device=model.device)[None]
        call(model, argument, cache, input_ids=tokens)
        start += num_tokens
    return cache


def call(model: PreTrainedModel, argument: str, cache: Any, **arguments: Any) -> Any:
    """What the model returns, which has read and written `cache`."""
    if not isinstance(cache, StateList):
        return model(**arguments, **{argument: cache}, use_cache=True)
    output = model(**arguments, **{argument: cache.tensors}, use_cache=True)
    cache.tensors = getattr(output, argument)
    return output


def _layout(model: PreTrainedModel, argument: str, cache: Any, num_tokens: int) -> CacheLayout:
    stored: list[int | None] = []
    keys_values: list[LayerKv] = []
    for layer in getattr(cache, "layers", ()):
        if not (type(layer) in KNOWN_LAYERS or is_block_indexed(layer) or is_compressed(layer)):
            raise NotCachedError(f"its cache has layers that are not supported ({type(layer).__name__})")
        stored.append(None)
        if isinstance(layer, CacheLayerMixin) and layer.keys is not None:
            stored[-1] = len(keys_values)
            keys_values.append(_layer_kv(layer, num_tokens))
    states = tuple(
        StateTensor(layer, kind, index, tuple(value.shape[1:]), value.dtype, name)
        for kind, layer, index, name, value in states_in(model, cache)
    )
    return CacheLayout(argument, tuple(stored), tuple(keys_values), states)


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
    if is_compressed(layer):
        window = None  # of what it compresses, all must stay
    index_dim = -(-_index_numbers(layer) // keys.shape[1])
    return LayerKv(keys.shape[1], keys.shape[3], values.shape[3], window, index_dim)


def is_block_indexed(layer: object) -> bool:
    """Whether it is a layer like that of MiniMax M3, which its modelling file defines."""
    return type(layer).__bases__ == (DynamicLayer,) and hasattr(layer, "update_index")


def is_compressed(layer: object) -> bool:
    """Whether it is a layer like those of DeepSeek V4, which their modelling file defines: with a window, and with
    entries for runs of all tokens."""
    return isinstance(layer, DynamicSlidingWindowLayer) and hasattr(layer, "store_compression_weights")


def _index_numbers(layer: Any) -> int:
    """What a layer keeps of a token beside keys and values."""
    if is_compressed(layer):
        return sum(2 * kept.shape[-1] for kept in layer.buffer_kv.values())
    keys = getattr(layer, "idx_keys" if is_block_indexed(layer) else "indexer_keys", None)
    return 0 if keys is None else int(keys.shape[-1])
