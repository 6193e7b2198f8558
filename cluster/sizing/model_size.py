"""How much memory a model takes, from its `config.json` or its description alone. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.workers.engine.limits.pool_size import ITEM_BYTES
from slipstream.workers.models.description.describing import describe
from slipstream.workers.models.description.model_description import ModelDescription
from slipstream.workers.models.directory.model_config import DtypeName, ModelConfig
from slipstream.workers.models.directory.stored_quantization import Fp8Stored
from slipstream.workers.models.spec_reader import read_spec

CODE_BYTES_8 = 1.02  # a weight in eight bits, with its part of the scales
CODE_BYTES_4 = 0.57  # in four bits, with scale and zero point for every 64 to 128 weights
NATIVE_DTYPES: tuple[DtypeName, ...] = ("float32", "bfloat16")  # as in `workers.models.native`, which imports torch
MAX_NATIVE_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`weight_bytes` are the weights in the form that is kept in memory, `widened_bytes` those of a quantised
    checkpoint whose codes are widened (where the native CPU kernels do not serve), `int4_bytes` what
    `engine.quantization: int4` would leave. `shared_out` are the numbers that a tensor-parallel group must divide."""

    weight_bytes: int
    widened_bytes: int
    int4_bytes: int
    kv_token_bytes: int  # of all layers
    max_positions: int
    dtype: DtypeName
    is_native: bool  # the native CPU kernels can compute it
    shared_out: tuple[int, ...] = ()

    @staticmethod
    def read(model_dir: Path) -> ModelFacts:
        """Raises ModelError."""
        model = read_spec(model_dir, apart=True)
        if isinstance(model, ModelConfig):
            return ModelFacts.of(model)
        return ModelFacts.of_general(describe(model_dir))

    @staticmethod
    def of_general(description: ModelDescription) -> ModelFacts:
        """Of a model that transformers computes: its weights are kept as config.json's dtype says."""
        model, item_bytes = description.spec, ITEM_BYTES[description.spec.dtype]
        weight_bytes = description.num_parameters * item_bytes
        return ModelFacts(
            weight_bytes=weight_bytes,
            widened_bytes=weight_bytes,
            int4_bytes=weight_bytes,
            kv_token_bytes=len(model.kv.layers) * model.kv.num_units * model.kv.unit_numbers * item_bytes,
            max_positions=model.max_position_embeddings,
            dtype=model.dtype,
            is_native=False,
            shared_out=(1,) if model.why_no_tp else tuple(count for _, count in model.divided) or (1,),
        )

    @staticmethod
    def of(model: ModelConfig) -> ModelFacts:
        item_bytes = ITEM_BYTES[model.dtype]
        heads, kv_heads = (count * model.head_dim for count in (model.num_heads, model.num_kv_heads))
        attention = model.hidden_size * (2 * heads + 2 * kv_heads)
        linear = model.num_layers * attention + 3 * model.hidden_size * model.inner_sizes
        # Rows for the lookup, and columns for the scores, which are packed also where the checkpoint has both in one.
        vocabulary = 2 * model.vocab_size * model.hidden_size * item_bytes
        code_bytes: float = item_bytes
        if model.quantization is not None:
            code_bytes = CODE_BYTES_8 if isinstance(model.quantization, Fp8Stored) else CODE_BYTES_4
        return ModelFacts(
            weight_bytes=int(vocabulary + linear * code_bytes),
            widened_bytes=vocabulary + linear * item_bytes,
            int4_bytes=int(vocabulary + linear * min(code_bytes, CODE_BYTES_4)),
            kv_token_bytes=model.num_layers * 2 * kv_heads * item_bytes,
            max_positions=model.max_position_embeddings,
            dtype=model.dtype,
            is_native=model.dtype in NATIVE_DTYPES
            and model.head_dim % 8 == 0
            and model.head_dim <= MAX_NATIVE_HEAD_DIM,
            shared_out=tuple(count for _, count in model.divided),
        )
