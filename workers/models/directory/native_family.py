"""The architectures that native code computes, by family: their names, their defaults, and the keys of config.json that
ask for something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from slipstream.workers.models.directory.json_keys import Keys, NotNativeError

Family = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "gemma", "gemma2", "gemma3"]

FAMILY_OF: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "GptOssForCausalLM": "gpt_oss",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}
MODEL_TYPES: dict[Family, str] = {"gemma3": "gemma3_text"}  # where it is not the family's name
GEMMAS: tuple[Family, ...] = ("gemma", "gemma2", "gemma3")


@dataclass(frozen=True, slots=True)
class FamilyDefaults:
    """What applies to a family if config.json is silent: the defaults of its configuration class in transformers 5."""

    max_positions: int
    head_dim: int | None = None  # None: hidden_size / heads
    kv_heads: int | None = None  # if the key is absent; None, or a key that is null: all heads
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    window: int = 4096  # tokens, of the layers that have one
    full_every: int | None = None  # one of so many layers sees all; None: `max_window_layers` says which
    attention_softcap: float | None = None
    final_softcap: float | None = None


DEFAULTS: dict[Family, FamilyDefaults] = {
    "llama": FamilyDefaults(2048),
    "mistral": FamilyDefaults(131072, kv_heads=8),
    "qwen2": FamilyDefaults(32768, kv_heads=32),
    "qwen3": FamilyDefaults(32768, head_dim=128, kv_heads=32),
    "qwen3_moe": FamilyDefaults(32768, kv_heads=4),
    "gpt_oss": FamilyDefaults(
        131072, head_dim=64, kv_heads=8, rms_norm_eps=1e-5, rope_theta=150_000.0, window=128, full_every=2
    ),
    "gemma": FamilyDefaults(8192, head_dim=256, kv_heads=16),
    "gemma2": FamilyDefaults(8192, head_dim=256, kv_heads=4, full_every=2, attention_softcap=50.0, final_softcap=30.0),
    "gemma3": FamilyDefaults(131072, head_dim=256, kv_heads=4, rope_theta=1_000_000.0, full_every=6),
}
# Keys that change the computation in models of other families, with the values that change nothing. They stand in
# config.json files that were made for other code.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "attention_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "attention_chunk_size": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "no_rope_layers": ([],),
    "use_bidirectional_attention": (False,),
    "transformers_weights": (),
}
# Those of them that a family computes.
OWN_KEYS: dict[Family, frozenset[str]] = {
    "gemma2": frozenset({"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}),
    "gemma3": frozenset({"query_pre_attn_scalar", "final_logit_softcapping"}),
    "qwen3_moe": frozenset({"num_experts", "num_local_experts"}),
    "gpt_oss": frozenset({"num_experts", "num_local_experts"}),
}


class UnknownFamilyError(NotNativeError):
    """No native family has the architecture that config.json names."""


def read_family(keys: Keys) -> Family:
    """Raises UnknownFamilyError, and ModelError where `model_type` contradicts `architectures`."""
    architectures = keys.get("architectures", [])
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise keys.error("architectures", f"must be a list of names, got {architectures!r}")
    if architectures:
        family = next((FAMILY_OF[a] for a in architectures if a in FAMILY_OF), None)
        key, value = "architectures", ", ".join(architectures)
    else:
        key, value = "model_type", keys.get("model_type", "")
        family = next((f for f in FAMILY_OF.values() if MODEL_TYPES.get(f, f) == value), None)
    if family is None:
        raise UnknownFamilyError(str(keys.not_native(key, f"{value!r} is not supported, only {', '.join(FAMILY_OF)}")))
    # vLLM goes by `architectures`, transformers by `model_type`.
    model_type = keys.get("model_type", MODEL_TYPES.get(family, family))
    if model_type != MODEL_TYPES.get(family, family):
        contradiction = keys.error("model_type", f"{model_type!r} contradicts architectures: {value}")
        if model_type in {MODEL_TYPES.get(one, one) for one in FAMILY_OF.values()}:
            raise contradiction
        raise UnknownFamilyError(str(contradiction))  # a type of its own, with the class of another one
    return family


def keys_of_other_families(keys: Keys, own: frozenset[str] = frozenset()) -> Iterator[tuple[str, object]]:
    """The keys, with their values, that change the computation in models of some families (`NEUTRAL_VALUES`), without
    those of `own`."""
    for key, neutral in NEUTRAL_VALUES.items():
        value = None if key in own else keys.get(key)
        if value is not None and not any(value == one and type(value) in (type(one), float) for one in neutral):
            yield key, value


def refuse_encoder_decoder(keys: Keys, by_default: bool = False) -> None:
    """Raises ModelError if the model is an encoder-decoder. Transformers may have a class for its decoder alone, which
    computes another model. `by_default`: what applies if config.json does not say."""
    key = "is_encoder_decoder"
    if keys.get(key, by_default) is True:
        names = keys.get("architectures")
        name = names[0] if isinstance(names, list) and names else keys.get("model_type")
        raise keys.error(
            key, f"true: {name} is an encoder-decoder model, which is not supported: only decoders are served"
        )


def refuse_other_keys(keys: Keys, family: Family) -> None:
    """Raises NotNativeError if a key asks for a computation that the family does not have."""
    for key, value in keys_of_other_families(keys, OWN_KEYS.get(family, frozenset())):
        raise keys.not_native(key, f"{value!r} is not supported")
    # transformers takes such a model for a Ministral, whose layers alternate.
    if family == "mistral" and "layer_types" in keys.values:
        raise keys.not_native("layer_types", "is not supported for Mistral")
