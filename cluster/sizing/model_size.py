"""How much memory a model takes, from its `config.json` or its description alone. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.workers.engine.limits.pool_size import ITEM_BYTES
from slipstream.workers.models.description.describing import describe
from slipstream.workers.models.description.model_description import ModelDescription
from slipstream.workers.models.directory.model_config import DtypeName, ModelConfig
from slipstream.workers.models.directory.stored_quantization import Fp8Stored
from slipstream.workers.models.spec_reader import NOT_NATIVE, read_spec

CODE_BYTES_8 = 1.02  # a weight in eight bits, with its part of the scales
CODE_BYTES_4 = 0.57  # in four bits, with scale and zero point for every 64 to 128 weights
# As in `workers.models.native_model`, which imports torch.
NATIVE_DTYPES: tuple[DtypeName, ...] = ("float32", "bfloat16")
HEAD_DIM_STEP, MAX_HEAD_DIM = 8, 512


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`weight_bytes` are the weights in the form that is kept in memory, `widened_bytes` those of a quantised
    checkpoint whose codes are widened (where the native CPU kernels do not serve), `int4_bytes` what
    `engine.quantization: int4` would leave. `not_native` says why the native kernels do not compute the model on a CPU;
    empty: they do. `shared_out` are the numbers that a tensor-parallel group must divide."""

    weight_bytes: int
    widened_bytes: int
    int4_bytes: int
    kv_token_bytes: int  # of all layers; 0 where a sequence has a state alone
    max_positions: int
    dtype: DtypeName
    not_native: str = ""
    shared_out: tuple[int, ...] = ()
    state_bytes: int = 0  # of a sequence, of any length
    notes: tuple[str, ...] = ()  # limits that config.json does not lead one to expect

    @property
    def is_native(self) -> bool:
        return not self.not_native

    def kv_bytes(self, num_tokens: int, page_tokens: int) -> int:
        """The pages of a sequence of so many tokens. Its state takes whole ones, as in `PageDemand`."""
        if not self.kv_token_bytes:
            return self.state_bytes
        page = page_tokens * self.kv_token_bytes
        return page * (-(-num_tokens // page_tokens) + -(-self.state_bytes // page))

    def most_tokens(self, num_bytes: int, page_tokens: int) -> int:
        """The longest sequence whose pages are no more than that."""
        if not self.kv_token_bytes:
            return self.max_positions if num_bytes >= self.state_bytes else 0
        page = page_tokens * self.kv_token_bytes
        pages = num_bytes // page - -(-self.state_bytes // page)
        return min(self.max_positions, max(pages, 0) * page_tokens)

    @staticmethod
    def read(model_dir: Path) -> ModelFacts:
        """Raises ModelError."""
        model = read_spec(model_dir, in_subprocess=True)
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
            not_native=NOT_NATIVE,
            shared_out=(1,) if model.why_no_tp else tuple(count for _, count in model.divided) or (1,),
            state_bytes=model.kv.state_bytes,
            notes=model.notes,
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
            not_native=_why_not_native(model),
            shared_out=tuple(count for _, count in model.divided),
        )


def _why_not_native(model: ModelConfig) -> str:
    why = "PyTorch computes, which is much slower: the native kernels have no form for"
    if model.dtype not in NATIVE_DTYPES:
        return f"{why} {model.dtype}; with engine.dtype: bfloat16 they have"
    if model.head_dim % HEAD_DIM_STEP or model.head_dim > MAX_HEAD_DIM:
        return f"{why} attention heads of {model.head_dim} numbers"
    return ""
