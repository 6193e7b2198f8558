"""Reads `config.json` of a model that native code computes. It imports neither transformers nor torch, which would
cost seconds at the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.workers.models.directory.json_keys import Keys, read_json
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.layer_windows import read_layer_windows
from slipstream.workers.models.directory.moe_config import MOE_READERS, MoeConfig
from slipstream.workers.models.directory.native_family import (
    DEFAULTS,
    GEMMAS,
    Family,
    FamilyDefaults,
    read_family,
    refuse_encoder_decoder,
    refuse_other_keys,
)
from slipstream.workers.models.directory.rope_config import Rope, read_ropes, stretched_positions
from slipstream.workers.models.directory.stored_quantization import Stored, stored_quantization

DtypeName = Literal["float32", "bfloat16", "float16"]
Activation = Literal["silu", "gelu_tanh"]

CONFIG_FILE = "config.json"
MAX_LAYERS = 10_000  # far more than any model has; lists with an entry for each are made before weights are looked at
DTYPES: dict[str, DtypeName] = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
DEFAULT_QUERY_SCALAR = 256.0  # of Gemma 2 and 3


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
    rope: Rope
    max_position_embeddings: int  # tokens of context, the stretch by yarn included
    layer_windows: tuple[int | None, ...]  # keys that a query of each layer sees, its own included; None: all
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    dtype: DtypeName
    quantization: Stored | None = None  # of the linear layers in the checkpoint
    window_rope: Rope | None = None  # of layers with a window; None: `rope`
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
        """Reads a local directory in Hugging Face layout. Raises ModelError, and NotNativeError if only native code
        cannot compute that."""
        path = Path(model_dir) / CONFIG_FILE
        keys = Keys(path, read_json(path))
        family = read_family(keys)
        refuse_encoder_decoder(keys)
        defaults = DEFAULTS[family]
        gate = _read_gate(keys, family)
        refuse_other_keys(keys, family)
        hidden_size = keys.integer("hidden_size")
        num_heads, num_kv_heads, head_dim = _read_heads(keys, defaults, hidden_size)
        num_layers = keys.integer("num_hidden_layers")
        if num_layers > MAX_LAYERS:
            raise keys.error("num_hidden_layers", f"must be at most {MAX_LAYERS}, got {num_layers}")
        max_positions = keys.integer("max_position_embeddings", defaults.max_positions)
        rope, window_rope = read_ropes(keys, family, max_positions)
        moe = MOE_READERS[family](keys, num_layers) if family in MOE_READERS else None
        attention_bias = family != "mistral" and keys.flag("attention_bias", family == "gpt_oss")
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
            rms_norm_eps=keys.number("rms_norm_eps", defaults.rms_norm_eps),
            rope=rope,
            max_position_embeddings=stretched_positions(keys, rope, max_positions),
            layer_windows=read_layer_windows(keys, family, num_layers),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=family != "qwen2" and attention_bias,
            mlp_bias=family == "llama" and keys.flag("mlp_bias", False),
            qk_norm=family in ("qwen3", "qwen3_moe", "gemma3"),
            tie_word_embeddings=keys.flag("tie_word_embeddings", family in GEMMAS),
            dtype=read_dtype(keys),
            quantization=stored_quantization(keys),
            window_rope=window_rope,
            gate=gate,
            query_scalar=keys.number("query_pre_attn_scalar", DEFAULT_QUERY_SCALAR) if has_post_norms else None,
            attention_softcap=_read_softcap(keys, "attn_logit_softcapping", defaults.attention_softcap),
            final_softcap=_read_softcap(keys, "final_logit_softcapping", defaults.final_softcap),
            post_norms=has_post_norms,
            moe=moe,
            attention_sinks=family == "gpt_oss",
        )


def _read_heads(keys: Keys, defaults: FamilyDefaults, hidden_size: int) -> tuple[int, int, int]:
    """The numbers of query and KV heads, and their size."""
    num_heads = keys.integer("num_attention_heads")
    kv_heads = defaults.kv_heads if "num_key_value_heads" not in keys.values else None
    num_kv_heads = keys.integer("num_key_value_heads", kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise keys.error("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads = {num_heads}")
    head_dim = keys.integer("head_dim", defaults.head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise keys.error("head_dim", f"rotary embedding needs an even number, got {head_dim}")
    return num_heads, num_kv_heads, head_dim


def _read_gate(keys: Keys, family: Family) -> Activation:
    key = "hidden_activation" if family in ("gemma2", "gemma3") else "hidden_act"
    if family in GEMMAS:
        # "gelu" stands in old files of Gemma's first version, which has always had the form with tanh.
        names = ("gelu_pytorch_tanh", "gelu") if family == "gemma" else ("gelu_pytorch_tanh",)
    else:
        names = ("silu", "swish")  # two names of one function
    if (activation := keys.get(key, names[0])) not in names:
        raise keys.not_native(key, f"only {names[0]!r} is supported, got {activation!r}")
    return "gelu_tanh" if family in GEMMAS else "silu"


def _read_softcap(keys: Keys, key: str, default: float | None) -> float | None:
    """A key that is null asks for no cap, one that is absent for the default."""
    return keys.optional_number(key) if key in keys.values else default


def read_dtype(keys: Keys) -> DtypeName:
    """The dtype of the weights by config.json. Raises ModelError if it is not supported."""
    key = "dtype" if keys.get("dtype") is not None else "torch_dtype"
    name = keys.get(key, "float32")
    if not isinstance(name, str) or name not in DTYPES:
        raise keys.error(key, f"{name!r} is not supported, only {', '.join(DTYPES)}")
    return DTYPES[name]
