"""What is found out about a model's attention by running it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, BloomConfig, BloomForCausalLM, GemmaConfig, GemmaForCausalLM
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from slipstream.workers.models.directory.kv_spec import KvSpec, LayerKv
from slipstream.workers.models.general.attention.attention_call import (
    AttentionCall,
    AttentionCalls,
    NoDecoderError,
    NotFlatError,
    Visibility,
)
from slipstream.workers.models.general.call_recorder import visibility_of
from slipstream.workers.models.general.describe import recorded_calls

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (causal_mask_function, Visibility()),
        (sliding_window_causal_mask_function(1), Visibility(window=1)),
        (sliding_window_causal_mask_function(24), Visibility(window=24)),
        (sliding_window_causal_mask_function(131_072), Visibility(window=131_072)),
        (chunked_causal_mask_function(32, torch.zeros(1, dtype=torch.long)), Visibility(chunk=32)),
        (chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.long)), Visibility(chunk=8192)),
    ],
)
def test_the_keys_that_a_query_sees_are_found_in_the_mask(mask: Callable[..., Any], expected: Visibility) -> None:
    assert visibility_of(mask) == expected


@pytest.mark.parametrize(
    "mask",
    [
        or_masks(causal_mask_function, lambda batch, head, query, key: key < 4),
        or_masks(sliding_window_causal_mask_function(24), lambda batch, head, query, key: key < 2),
        lambda batch, head, query, key: (key <= query) & (key % 2 == query % 2),
    ],
)
def test_a_mask_of_another_form_is_refused(mask: Callable[..., Any]) -> None:
    with pytest.raises(NotFlatError, match="masks of a form"):
        visibility_of(mask)


def test_the_layers_of_a_model_are_found() -> None:
    with torch.device("meta"):
        model = GemmaForCausalLM(GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=16))
    calls = recorded_calls(model)
    assert [call.layer for call in calls.calls] == [0, 1]
    assert calls.kv_spec() == KvSpec((LayerKv(1, 16, 16),) * 2)
    assert calls.kv_spec(tp=2).layers[0].num_heads == 2


def test_a_model_whose_tokens_see_later_ones_is_refused() -> None:
    with torch.device("meta"):
        model = BertLMHeadModel(BertConfig(**SIZES))
    with pytest.raises(NoDecoderError, match=r"later tokens"):
        recorded_calls(model)
    with pytest.raises(NoDecoderError, match=r"later tokens"):
        visibility_of(bidirectional_mask_function)


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    with torch.device("meta"):
        model = BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4))
    with pytest.raises(NotFlatError, match=r"position_ids|attention interface"):
        recorded_calls(model)


def test_a_layer_that_others_read_keeps_what_the_farthest_of_them_sees() -> None:
    def call(window: int | None, layer: int, *, stores: bool) -> AttentionCall:
        return AttentionCall(4, 2, 8, 8, 1.0, None, False, Visibility(window), layer, stores)

    calls = AttentionCalls((call(4, 0, stores=True), call(None, 1, stores=True), call(9, 0, stores=False)))
    assert [layer.window for layer in calls.kv_spec().layers] == [9, None]
