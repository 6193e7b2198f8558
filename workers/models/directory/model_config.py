"""Reads `config.json` of a model directory. It imports neither transformers nor torch, which would cost seconds at the
start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.workers.models.directory.json_keys import MAX_INTEGER, Keys, NotNativeError, read_json
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.moe_config import MOE_READERS, MoeConfig
from slipstream.workers.models.directory.stored_quantization import Stored, stored_quantization

Family = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "gemma", "gemma2", "gemma3"]
DtypeName = Literal["float32", "bfloat16", "float16"]
Activation = Literal["silu", "gelu_tanh"]

CONFIG_FILE = "config.json"
MAX_LAYERS = 10_000  # far more than any model has; lists with an entry for each are made before weights are looked at

FAMILIES: dict[str, Family] = {
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
DTYPES: dict[str, DtypeName] = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
# What applies to a family if config.json is silent: the defaults of its configuration class in transformers 5.
DEFAULT_MAX_POSITIONS: dict[Family, int] = {
    "llama": 2048,
    "mistral": 131072,
    "qwen2": 32768,
    "qwen3": 32768,
    "qwen3_moe": 32768,
    "gpt_oss": 131072,
    "gemma": 8192,
    "gemma2": 8192,
    "gemma3": 131072,
}
DEFAULT_ROPE_THETA = 10000.0
DEFAULT_GPT_OSS_THETA = 150000.0
DEFAULT_RMS_NORM_EPS = 1e-6
DEFAULT_GPT_OSS_EPS = 1e-5
DEFAULT_WINDOW = 4096
DEFAULT_GPT_OSS_WINDOW = 128
# Of the others: hidden_size / heads.
DEFAULT_HEAD_DIM: dict[Family, int] = {"qwen3": 128, "gpt_oss": 64, "gemma": 256, "gemma2": 256, "gemma3": 256}
# If the key is absent; null: all heads.
DEFAULT_KV_HEADS: dict[Family, int] = {
    "mistral": 8,
    "qwen2": 32,
    "qwen3": 32,
    "qwen3_moe": 4,
    "gpt_oss": 8,
    "gemma": 16,
    "gemma2": 4,
    "gemma3": 4,
}
DEFAULT_GEMMA3_THETA, DEFAULT_GEMMA3_WINDOW_THETA = 1_000_000.0, 10_000.0
DEFAULT_QUERY_SCALAR = 256.0
# Every so many layers, one sees the whole context.
WINDOW_PATTERN: dict[Family, int] = {"gemma2": 2, "gemma3": 6, "gpt_oss": 2}
# Keys that change the computation in models of other families, with the values that ask for nothing. They stand in
# config.json files that were made for code of their own, which is not run.
NEUTRAL: dict[str, tuple[object, ...]] = {
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
# Of these, what a family has.
OWN_KEYS: dict[Family, frozenset[str]] = {
    "gemma2": frozenset({"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}),
    "gemma3": frozenset({"query_pre_attn_scalar", "final_logit_softcapping"}),
    "qwen3_moe": frozenset({"num_experts", "num_local_experts"}),
    "gpt_oss": frozenset({"num_experts", "num_local_experts"}),
}


class UnknownFamilyError(NotNativeError):
    """No native family has the architecture that config.json names."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: low frequencies divided by `factor`, high ones kept, a smooth passage between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """https://arxiv.org/abs/2309.00071. `attention_factor` multiplies cosines and sines."""

    factor: float
    original_max_positions: int
    attention_factor: float | None
    mscale: float | None
    mscale_all_dim: float | None
    beta_fast: float
    beta_slow: float
    truncate: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """The base of rotary embeddings, and how they are stretched."""

    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the whole model; a tensor-parallel rank holds its share of heads, intermediate size and vocabulary."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int  # tokens of context, the stretch by yarn included
    layer_windows: tuple[int | None, ...]  # keys that a query of each layer sees, its own included; None: all
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    dtype: DtypeName
    quantization: Stored | None = None  # of the linear layers in the checkpoint
    window_rope: Rope | None = None  # of layers with a window; None: as in all others
    gate: Activation = "silu"  # of the feed-forward block
    query_scalar: float | None = None  # scores are divided by its root; None: head_dim
    attention_softcap: float | None = None
    final_softcap: float | None = None  # of the output layer's scores
    post_norms: bool = False  # behind attention and feed-forward block
    moe: MoeConfig | None = None
    attention_sinks: bool = False  # a number a head takes part in the softmax of its scores

    @property
    def has_dense_layers(self) -> bool:
        """Whether there are layers whose feed-forward block has no experts, of `intermediate_size`."""
        return self.moe is None or not all(self.moe.in_layers)

    @property
    def inner_sizes(self) -> int:
        """The inner sizes of all feed-forward blocks and experts together."""
        experts = 0 if self.moe is None else sum(self.moe.in_layers)
        dense = (self.num_layers - experts) * self.intermediate_size
        return dense + (0 if self.moe is None else experts * self.moe.num_experts * self.moe.intermediate_size)

    @property
    def kv(self) -> KvSpec:
        return KvSpec.uniform(self.num_kv_heads, self.head_dim, self.layer_windows)

    @property
    def divided(self) -> tuple[tuple[str, int], ...]:
        """The sizes that a tensor-parallel degree must divide; those of experts depend on how they are dealt out (see
        `RankShare.of`)."""
        heads = (("num_attention_heads", self.num_heads), ("num_key_value_heads", self.num_kv_heads))
        return (*heads, ("intermediate_size", self.intermediate_size)) if self.has_dense_layers else heads

    @staticmethod
    def read(model_dir: Path | str) -> ModelConfig:
        """Reads a local directory in Hugging Face layout. Raises ModelError, and NotNativeError if it is only us who
        cannot compute that."""
        path = Path(model_dir) / CONFIG_FILE
        keys = Keys(path, read_json(path))
        family = _family(keys)
        gate = _gate(keys, family)
        _refuse_what_changes_the_model(keys, family)
        hidden_size = keys.integer("hidden_size")
        num_heads = keys.integer("num_attention_heads")
        num_layers = keys.integer("num_hidden_layers")
        if num_layers > MAX_LAYERS:
            raise keys.error("num_hidden_layers", f"must be at most {MAX_LAYERS}, got {num_layers}")
        kv_heads = DEFAULT_KV_HEADS.get(family) if "num_key_value_heads" not in keys.values else None
        num_kv_heads = keys.integer("num_key_value_heads", kv_heads or num_heads)
        if num_heads % num_kv_heads:
            raise keys.error("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads = {num_heads}")
        head_dim = keys.integer("head_dim", DEFAULT_HEAD_DIM.get(family, hidden_size // num_heads))
        if head_dim % 2:
            raise keys.error("head_dim", f"rotary embedding needs an even number, got {head_dim}")
        max_positions = keys.integer("max_position_embeddings", DEFAULT_MAX_POSITIONS[family])
        rope_theta, rope_scaling, window_rope = _ropes(keys, family, max_positions)
        if isinstance(rope_scaling, YarnScaling):
            stretched = rope_scaling.factor * rope_scaling.original_max_positions
            if stretched > MAX_INTEGER:
                raise keys.error(
                    "rope_scaling", f"factor {rope_scaling.factor} makes more than {MAX_INTEGER} positions"
                )
            max_positions = max(max_positions, int(stretched))
        moe = MOE_READERS[family](keys, num_layers) if family in MOE_READERS else None
        attention_bias = family != "mistral" and keys.flag("attention_bias", family == "gpt_oss")
        default_eps = DEFAULT_GPT_OSS_EPS if family == "gpt_oss" else DEFAULT_RMS_NORM_EPS
        has_post_norms = family in ("gemma2", "gemma3")
        return ModelConfig(
            family=family,
            vocab_size=keys.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=keys.integer("intermediate_size", None if moe is None else moe.intermediate_size),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=keys.number("rms_norm_eps", default_eps),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            max_position_embeddings=max_positions,
            layer_windows=_layer_windows(keys, family, num_layers),
            qkv_bias=True if family == "qwen2" else attention_bias,
            output_bias=False if family == "qwen2" else attention_bias,
            mlp_bias=family == "llama" and keys.flag("mlp_bias", False),
            qk_norm=family in ("qwen3", "qwen3_moe", "gemma3"),
            tie_word_embeddings=keys.flag("tie_word_embeddings", family in GEMMAS),
            dtype=_dtype(keys),
            quantization=stored_quantization(keys),
            window_rope=window_rope,
            gate=gate,
            query_scalar=keys.number("query_pre_attn_scalar", DEFAULT_QUERY_SCALAR) if has_post_norms else None,
            attention_softcap=_softcap(keys, "attn_logit_softcapping", 50.0) if family == "gemma2" else None,
            final_softcap=_softcap(keys, "final_logit_softcapping", 30.0 if family == "gemma2" else None),
            post_norms=has_post_norms,
            moe=moe,
            attention_sinks=family == "gpt_oss",
        )


def _family(keys: Keys) -> Family:
    architectures = keys.get("architectures", [])
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise keys.error("architectures", f"must be a list of names, got {architectures!r}")
    if architectures:
        family = next((FAMILIES[a] for a in architectures if a in FAMILIES), None)
        key, value = "architectures", ", ".join(architectures)
    else:
        key, value = "model_type", keys.get("model_type", "")
        family = next((f for f in FAMILIES.values() if MODEL_TYPES.get(f, f) == value), None)
    if family is None:
        raise UnknownFamilyError(str(keys.not_native(key, f"{value!r} is not supported, only {', '.join(FAMILIES)}")))
    # vLLM goes by `architectures`, transformers by `model_type`.
    model_type = keys.get("model_type", MODEL_TYPES.get(family, family))
    if model_type != MODEL_TYPES.get(family, family):
        contradiction = keys.error("model_type", f"{model_type!r} contradicts architectures: {value}")
        if model_type in {MODEL_TYPES.get(one, one) for one in FAMILIES.values()}:
            raise contradiction
        raise UnknownFamilyError(str(contradiction))  # a type of its own, with the class of another one
    return family


def _gate(keys: Keys, family: Family) -> Activation:
    key = "hidden_activation" if family in ("gemma2", "gemma3") else "hidden_act"
    if family in GEMMAS:
        # "gelu" stands in old files of Gemma's first version, which has always had the form with tanh.
        names = ("gelu_pytorch_tanh", "gelu") if family == "gemma" else ("gelu_pytorch_tanh",)
    else:
        names = ("silu", "swish")  # two names of one function
    if (activation := keys.get(key, names[0])) not in names:
        raise keys.not_native(key, f"only {names[0]!r} is supported, got {activation!r}")
    return "gelu_tanh" if family in GEMMAS else "silu"


def _softcap(keys: Keys, key: str, default: float | None) -> float | None:
    """A key that is null asks for no cap, one that is absent for the default."""
    return keys.optional_number(key) if key in keys.values else default


def keys_of_other_families(keys: Keys, own: frozenset[str] = frozenset()) -> Iterator[tuple[str, object]]:
    """The keys, with their values, that change the computation in models of some families (`NEUTRAL`), but for those of
    `own`."""
    for key, neutral in NEUTRAL.items():
        value = None if key in own else keys.get(key)
        if value is not None and not any(value == one and type(value) in (type(one), float) for one in neutral):
            yield key, value


def _refuse_what_changes_the_model(keys: Keys, family: Family) -> None:
    for key, value in keys_of_other_families(keys, OWN_KEYS.get(family, frozenset())):
        raise keys.not_native(key, f"{value!r} is not supported")
    # transformers takes such a model for a Ministral, whose layers alternate.
    if family == "mistral" and "layer_types" in keys.values:
        raise keys.not_native("layer_types", "is not supported for Mistral")


def _ropes(keys: Keys, family: Family, max_positions: int) -> tuple[float, RopeScaling | None, Rope | None]:
    """The base and the scaling of rotary embeddings; and those of layers with a window, where these differ.
    transformers 5 writes `rope_parameters` by kind of layer; older files have `rope_local_base_freq` for the windows'
    base."""
    if family != "gemma3":
        if family == "gpt_oss" and all(keys.section(key) is None for key in ("rope_scaling", "rope_parameters")):
            raise keys.not_native("rope_scaling", "is missing")
        theta = DEFAULT_GPT_OSS_THETA if family == "gpt_oss" else DEFAULT_ROPE_THETA
        return (*_rope(keys, max_positions, theta), None)
    by_kind = keys.section("rope_parameters")
    if by_kind is None:
        theta, scaling = _rope(keys, max_positions, DEFAULT_GEMMA3_THETA)
        return theta, scaling, Rope(keys.number("rope_local_base_freq", DEFAULT_GEMMA3_WINDOW_THETA))
    if keys.get("rope_scaling"):
        raise keys.error("rope_scaling", "is not supported beside rope_parameters")
    for key, value in by_kind.values.items():
        if not isinstance(value, dict):
            raise by_kind.not_native(key, "only parameters of full_attention and sliding_attention are supported")
    ropes = []
    for kind, key, default in (
        ("full_attention", "rope_theta", DEFAULT_GEMMA3_THETA),
        ("sliding_attention", "rope_local_base_freq", DEFAULT_GEMMA3_WINDOW_THETA),
    ):
        rope = by_kind.section(kind)
        theta = keys.number(key, default)
        if rope is None:
            ropes.append(Rope(theta))
        else:
            ropes.append(Rope(rope.number("rope_theta", theta), _rope_scaling(keys, rope, max_positions)))
    return ropes[0].theta, ropes[0].scaling, ropes[1]


def _rope(
    keys: Keys, max_positions: int, default_theta: float = DEFAULT_ROPE_THETA
) -> tuple[float, RopeScaling | None]:
    """The base and the scaling of rotary embeddings. transformers 5 writes `rope_parameters`; older files have
    `rope_theta` and `rope_scaling`."""
    scaling = keys.section("rope_scaling")
    rope = scaling if scaling is not None and scaling.values else keys.section("rope_parameters")
    theta = keys.number("rope_theta", default_theta)
    if keys.number("partial_rotary_factor", 1.0) != 1:
        raise keys.not_native("partial_rotary_factor", "only 1 is supported")
    if rope is None:
        return theta, None
    for key, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.error(key, "parameters of single kinds of layers are not supported")
    for key in ("mrope_section", "llama_4_scaling_beta"):
        if rope.get(key) is not None:
            raise rope.error(key, f"{rope.get(key)!r} is not supported")
    if rope.number("partial_rotary_factor", 1.0) != 1:
        raise rope.not_native("partial_rotary_factor", "only 1 is supported")
    return rope.number("rope_theta", theta), _rope_scaling(keys, rope, max_positions)


def _rope_scaling(keys: Keys, rope: Keys, max_positions: int) -> RopeScaling | None:
    rope_type = rope.get("rope_type", rope.get("type", "default"))

    def original_max_positions() -> int:
        return keys.integer(
            "original_max_position_embeddings", rope.integer("original_max_position_embeddings", max_positions)
        )

    match rope_type:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_max_positions=original_max_positions(),
            )
        case "yarn":
            return YarnScaling(
                factor=rope.number("factor"),
                original_max_positions=original_max_positions(),
                attention_factor=rope.optional_number("attention_factor"),
                mscale=rope.optional_number("mscale"),
                mscale_all_dim=rope.optional_number("mscale_all_dim"),
                beta_fast=rope.number("beta_fast", 32.0),
                beta_slow=rope.number("beta_slow", 1.0),
                truncate=rope.flag("truncate", True),
            )
        case _:
            raise rope.not_native("rope_type", f"{rope_type!r} is not supported, only default, linear, llama3 and yarn")


def _layer_windows(keys: Keys, family: Family, num_layers: int) -> tuple[int | None, ...]:
    layer_types = keys.get("layer_types", [])
    if not isinstance(layer_types, list):
        raise keys.error("layer_types", f"must be a list of names, got {layer_types!r}")
    match family:
        case "llama" | "gemma":
            if any(kind != "full_attention" for kind in layer_types):
                raise keys.error("layer_types", f"only full_attention is supported for {family}")
            return (None,) * num_layers
        case "mistral":
            # If this key is absent it means 4096, if it is null it means none. For all other keys, the two are the
            # same.
            absent = "sliding_window" not in keys.values
            window = DEFAULT_WINDOW if absent else keys.get("sliding_window")
            return (window if window is None else keys.integer("sliding_window", window),) * num_layers
        case "qwen3_moe":
            if any(kind != "full_attention" for kind in layer_types):
                raise keys.not_native("layer_types", "only full_attention is supported for Qwen3-MoE")
            slides = keys.flag("use_sliding_window", False)
            return (keys.integer("sliding_window", DEFAULT_WINDOW) if slides else None,) * num_layers
        case "gpt_oss":
            window = keys.integer("sliding_window", DEFAULT_GPT_OSS_WINDOW)
            return tuple(window if slides else None for slides in _sliding_layers(keys, family, num_layers))
        case "qwen2" | "qwen3":
            has_no_window = "sliding_window" in keys.values and keys.get("sliding_window") is None
            if has_no_window or not keys.flag("use_sliding_window", False):
                if "sliding_attention" in layer_types:
                    raise keys.error("layer_types", "sliding_attention needs use_sliding_window and sliding_window")
                return (None,) * num_layers
            window = keys.integer("sliding_window", DEFAULT_WINDOW)
            return tuple(window if slides else None for slides in _sliding_layers(keys, family, num_layers))
        case "gemma2" | "gemma3":
            if "sliding_window" in keys.values and keys.get("sliding_window") is None:
                raise keys.error("sliding_window", f"null is not supported for {family}")
            window = keys.integer("sliding_window", DEFAULT_WINDOW)
            return tuple(window if slides else None for slides in _sliding_layers(keys, family, num_layers))


def _sliding_layers(keys: Keys, family: Family, num_layers: int) -> list[bool]:
    layer_types = keys.get("layer_types")
    if layer_types is None and family in WINDOW_PATTERN:
        every = WINDOW_PATTERN[family]
        if family == "gemma3":
            every = keys.integer("sliding_window_pattern", every)
        return [(layer + 1) % every != 0 for layer in range(num_layers)]
    if layer_types is None:
        first = keys.get("max_window_layers", 28)
        if type(first) is not int or first < 0:
            raise keys.error("max_window_layers", f"must be an integer from 0, got {first!r}")
        return [layer >= first for layer in range(num_layers)]
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise keys.error("layer_types", f"must be a list of {num_layers} names, got {layer_types!r}")
    for name in layer_types:
        if name not in ("full_attention", "sliding_attention"):
            raise keys.error("layer_types", f"{name!r} is not supported, only full_attention and sliding_attention")
    return [name == "sliding_attention" for name in layer_types]


def _dtype(keys: Keys) -> DtypeName:
    key = "dtype" if keys.get("dtype") is not None else "torch_dtype"
    name = keys.get(key, "float32")
    if not isinstance(name, str) or name not in DTYPES:
        raise keys.error(key, f"{name!r} is not supported, only {', '.join(DTYPES)}")
    return DTYPES[name]
