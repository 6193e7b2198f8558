"""A configuration of any causal model made tiny: few layers, narrow, and with every kind of layer that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .tiny_overrides import OVERRIDES, WINDOW

VOCAB_SIZE = 264  # 256 bytes, three special tokens, and five that no text has
BOS_ID, EOS_ID, PAD_ID = 256, 257, 258
SPARE_ID = 260  # a stand-in for the placeholders of images and sounds, which no prompt has
NUM_LAYERS = 4

# By the name of a field, in any configuration and any part of one.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), VOCAB_SIZE),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "backbone_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), NUM_LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers"), NUM_LAYERS),
    "num_decoder_layers": NUM_LAYERS,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "dff", "d_inner", "ffn_hidden_size", "dim_ff"), 96),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "feed_forward_size", "dense_intermediate_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    "intermediate_size_mlp": 96,
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    "n_group": 2,
    "topk_group": 1,
    "zero_expert_num": 4,
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "window_size"), WINDOW),
    **dict.fromkeys(("local_attention", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), 512),
    "original_max_position_embeddings": 512,
    **dict.fromkeys(("head_dim", "swa_head_dim", "attention_head_size", "dim_head", "kv_channels", "d_head"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "kv_lora_rank": 24,
    "q_lora_rank": 24,
    "query_pre_attn_scalar": 16,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_num_attention_heads": 4,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_heads"), 2),
    "linear_num_value_heads": 4,
    **dict.fromkeys(("linear_key_head_dim", "linear_head_dim", "linear_value_head_dim"), 16),
    "index_topk": 512,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "conv_L_cache": 3,
}
# These are made small only where the configuration has a number there.
ONLY_NUMBERS = {
    "head_dim",
    "sliding_window",
    "n_group",
    "topk_group",
    "q_lora_rank",
    "num_experts",
    "original_max_position_embeddings",
}
# Tokens that `generate` would put in or leave out, whatever the scores are.
FORCED = {"forced_eos_token_id", "forced_bos_token_id", "suppress_tokens", "begin_suppress_tokens"}
LAYER_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types")
ID_SUFFIXES = ("_token_id", "_token_index", "_index")


def model_types() -> dict[str, str]:
    """The class of each causal model type that the installed transformers knows."""
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def is_decoder_of_more(model_type: str) -> bool:
    """Whether the causal class of this type is the decoder of a model that has an encoder, too."""
    return getattr(CONFIG_MAPPING[model_type], "is_encoder_decoder", False) is True or model_type == "trocr"


def is_encoder(model_type: str) -> bool:
    """Whether the models of this type are encoders, unless the configuration makes them causal."""
    return OVERRIDES.get(model_type, {}).get("is_decoder") is True and not is_decoder_of_more(model_type)


def tiny_configs(model_type: str) -> tuple[PreTrainedConfig, PreTrainedConfig]:
    """The configuration that the class of this type takes, and the one that a checkpoint of this type has: where the
    class is for text alone, that of a model which also sees or hears. Raises whatever the configuration's class
    raises, if the sizes do not fit together."""
    known = CONFIG_MAPPING[model_type]
    wanted = getattr(transformers, model_types()[model_type]).config_class
    for name, part in known.sub_configs.items():
        if part is wanted and wanted is not known:
            text = _tiny(wanted, wanted.model_type)
            return text, known(**OVERRIDES.get(model_type, {}) | {name: text.to_dict()})
    whole = _tiny(known, model_type)
    if is_decoder_of_more(model_type):
        whole.is_encoder_decoder = False  # not all classes say so of their own copy
    return whole, whole


def _tiny(known: type[PreTrainedConfig], model_type: str) -> PreTrainedConfig:
    overrides = OVERRIDES.get(model_type, {})
    try:
        default = known()
    except StrictDataclassError:  # the defaults of some classes do not pass their own checks
        default = known(**overrides)
    values = _shrunk(default)
    for name, part in _parts(default):
        values[name] = _shrunk(part) | OVERRIDES.get(part.model_type, {}) | {"model_type": part.model_type}
    for name, value in deepcopy(overrides).items():
        values[name] = values[name] | value if isinstance(value, dict) and isinstance(values.get(name), dict) else value
    return known(**values)


def _parts(default: PreTrainedConfig) -> Iterator[tuple[str, PreTrainedConfig]]:
    for name in default.sub_configs:
        part = getattr(default, name)
        if isinstance(part, PreTrainedConfig):
            yield name, part


def _shrunk(default: PreTrainedConfig) -> dict[str, Any]:
    """What to change of a default configuration, parts of it included."""
    values: dict[str, Any] = {}
    for name, value in vars(default).items():
        if name in SIZES and not (value is None and name in ONLY_NUMBERS):
            if isinstance(value, (int, float)) or value is None:
                values[name] = SIZES[name]
        elif name in FORCED:
            values[name] = None
        elif name == "eos_token_id":
            values[name] = EOS_ID
        elif name == "bos_token_id":
            values[name] = BOS_ID
        elif name == "pad_token_id":
            values[name] = PAD_ID
        elif name.endswith(ID_SUFFIXES) and isinstance(value, int) and value >= VOCAB_SIZE:
            values[name] = SPARE_ID
    if "kv_lora_rank" in values:
        values["num_key_value_heads"] = values["num_attention_heads"]
    rotated = getattr(default, "qk_rope_head_dim", None)
    if rotated is not None and getattr(default, "head_dim", None) == rotated:
        values["head_dim"] = values["qk_rope_head_dim"]
    for name in LAYER_KINDS:
        if isinstance(getattr(type(default), default.attribute_map.get(name, name), None), property):
            continue
        kinds = list(dict.fromkeys(getattr(default, name, None) or ()))
        if len(kinds) > 1:
            values[name] = [kinds[layer % len(kinds)] for layer in range(max(NUM_LAYERS, len(kinds)))]
    return values
