"""What `tiny_config` cannot know of single model types: fields that must fit each other, switches of what a type can do
beside its defaults, and kinds of layers that the defaults leave out."""

from __future__ import annotations

from typing import Any

WINDOW = 20  # tokens; no multiple of a page, and less than half of most prompts
SLIDING = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
DENSE_AND_SPARSE = ["dense", "sparse", "sparse", "sparse"]
DECODER: dict[str, Any] = {"is_decoder": True}
SPARSE_INDEX: dict[str, Any] = {"index_topk": 16}  # fewer tokens than a prompt has, so that the choice matters

# Why there is no tiny model of a type. The error follows.
NOT_BUILT = {
    "blt": "its configuration has no number of layers, which a cache of transformers asks for",
    "gemma3n": "it looks at images with a model of the package timm; gemma3n_text is the same without",
    "gemma4_assistant": "it is a drafting head, which reads the keys and values of another model",
    "gemma4_unified_assistant": "it is a drafting head, which reads the keys and values of another model",
    "musicgen": "it is the decoder of a music model, whose tokens are codes of sound in several books",
    "musicgen_melody": "it is the decoder of a music model, whose tokens are codes of sound in several books",
    "prophetnet": "it is the decoder of an encoder-decoder model, and predicts several tokens at a time",
}

OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "bert",
            "bert-generation",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "megatron-bert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roformer",
            "xlm-roberta",
            "xlm-roberta-xl",
            "bart",
            "blenderbot",
            "blenderbot-small",
            "marian",
            "mbart",
            "mvp",
            "pegasus",
            "plbart",
            "prophetnet",
            "trocr",
            "whisper",
        ),
        DECODER,
    ),
    "axk2": SPARSE_INDEX,
    "bailing_hybrid": {"n_group": 2, "topk_group": 2},
    "bamba": {"attn_layer_indices": [1, 3], "mamba_expand": 1, "mamba_n_heads": 4, "mamba_d_head": 16},
    "big_bird": DECODER | {"attention_type": "original_full"},
    "bigbird_pegasus": DECODER | {"attention_type": "original_full"},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "cohere_compass_text": {
        "layer_types": SLIDING,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 4]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "cohere2_moe": {"mlp_layer_types": DENSE_AND_SPARSE, "prefix_dense_intermediate_size": 96},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"first_k_dense_replace": 1, "num_experts_per_tok": 2},
    "deepseek_v32": SPARSE_INDEX,
    "deepseek_v4": SPARSE_INDEX
    | {
        "o_groups": 2,
        "o_lora_rank": 16,
        "layer_types": [
            "sliding_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "compressed_sparse_attention",
        ],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
        "hc_mult": 2,
    },
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots3_note": {"vision_config": {"adapter_out_dim": 64}, "audio_config": {"adapter_out_dim": 64}},
    "dots3_note_text": SPARSE_INDEX
    | {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 24,
        "swa_kv_lora_rank": 32,
        "swa_head_dim": 24,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
        "swa_qk_rope_head_dim": 8,
        "sliding_window": WINDOW,
    },
    "ernie4_5_moe": {"moe_num_shared_experts": 1},
    "exaone_moe": {"mlp_layer_types": DENSE_AND_SPARSE},
    "falcon": {"num_attention_heads": 4, "alibi": False, "new_decoder_architecture": True},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": [*SLIDING, "sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
        "intermediate_size": [96] * 6,
    },
    "gemma4_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": [*SLIDING, "sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 16,
        "global_head_dim": 32,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "gemma4_unified_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": [*SLIDING, "sliding_attention", "full_attention"],
        "global_head_dim": 32,
    },
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "global_head_dim": 32,
            "enable_moe_block": False,
        }
    },
    "gemma4_unified_assistant": {"text_config": {"model_type": "gemma4_unified_text", "global_head_dim": 32}},
    "glm_moe_dsa": SPARSE_INDEX,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gpt_oss": {"intermediate_size": 32},
    "granitemoe": {"intermediate_size": 32},
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "shared_intermediate_size": 32,
        "intermediate_size": 32,
        "mamba_d_head": 32,
        "position_embedding_type": "rope",
    },
    "granitemoeshared": {"shared_intermediate_size": 32, "intermediate_size": 32},
    "granitemoe_swa": {"shared_intermediate_size": 32, "intermediate_size": 32},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "hy_v4": SPARSE_INDEX,
    "inkling_text": {"mlp_layer_types": DENSE_AND_SPARSE},
    "jamba": {"num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_expand": 1},
    "laguna": {"layer_types": SLIDING, "mlp_layer_types": DENSE_AND_SPARSE},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 2},
    "mellum": {"layer_types": SLIDING, "mlp_layer_types": DENSE_AND_SPARSE},
    "minicpm3": {"v_head_dim": 16, "dim_model_base": 32},
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "intermediate_size": 32, "block_size": 16},
    "minimax_m3_vl_text": {
        "shared_intermediate_size": 32,
        "intermediate_size": 32,
        "mlp_layer_types": DENSE_AND_SPARSE,
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_block_size": 8,
        "index_topk_blocks": 2,
        "index_n_heads": 2,
    },
    "ministral": {"head_dim": 16, "layer_types": SLIDING},
    "mixtral": {"intermediate_size": 32, "sliding_window": WINDOW},
    "mllama": {"text_config": {"model_type": "mllama_text_model", "cross_attention_layers": [3]}},
    "modernbert-decoder": {"layer_types": SLIDING},
    "mpt": {"expansion_ratio": 2},
    "musicgen": {},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "full_attention"],
        "n_groups": 2,
        "mamba_head_dim": 16,
    },
    "olmo_hybrid": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "olmoe": {"intermediate_size": 32},
    "phi3": {"sliding_window": WINDOW},
    "phi4_multimodal": {
        "audio_config": {
            "num_blocks": 1,
            "nemo_conv_channels": 32,
            "ext_pw_out_channel": 64,
            "depthwise_separable_out_channel": 64,
        }
    },
    "phimoe": {"intermediate_size": 32},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen2_moe": {"use_sliding_window": True, "max_window_layers": 2, "mlp_only_layers": [0]},
    "qwen3_moe": {"mlp_only_layers": [0]},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "hc_count": 2,
        "hc_lowrank": 8,
    },
    "recurrent_gemma": {
        "num_hidden_layers": 5,
        "block_types": ["recurrent", "recurrent", "attention"],
        "lru_width": 64,
    },
    "reformer": DECODER
    | {
        "attn_layers": ["local", "lsh", "local", "lsh"],
        "axial_pos_shape": (16, 32),
        "axial_pos_embds_dim": (32, 32),
        "hidden_size": 64,
        "num_buckets": 4,
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
    },
    "roc_bert": DECODER
    | {
        "pronunciation_vocab_size": 264,
        "shape_vocab_size": 264,
        "pronunciation_embed_dim": 64,
        "shape_embed_dim": 64,
        "concat_input": True,
    },
    "starcoder2": {"sliding_window": WINDOW},
    "xlm": {"causal": True},
    "xlstm": {"num_heads": 4, "chunk_size": 16, "qk_dim_factor": 1.0},
    "xmod": DECODER | {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_expand": 1, "n_mamba_heads": 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_expand": 1, "use_mem_rope": True},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
