"""From a model directory to a model in memory: each rank reads its share of each tensor, fused and cast on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.linear import pack_weight
from slipstream.workers.models.checkpoint import WHOLE, Checkpoint, open_checkpoint
from slipstream.workers.models.config import DtypeName, ModelConfig
from slipstream.workers.models.llama import LayerWeights, Linear, Llama, LlamaWeights
from slipstream.workers.models.tensor_parallel import TensorParallel

TORCH_DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    model_dir: Path | str,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    tp: TensorParallel | None = None,
) -> Llama:
    """Loads a local directory in Hugging Face layout (config.json and safetensors).

    `dtype` None takes the one that config.json names; `tp` None is a group of one. Raises ModelError.
    """
    model_dir = Path(model_dir)
    config = ModelConfig.read(model_dir)
    tp = TensorParallel() if tp is None else tp
    with open_checkpoint(model_dir) as checkpoint:
        reader = _Reader(checkpoint, config, tp, dtype or TORCH_DTYPES[config.dtype], torch.device(device))
        return Llama(config, reader.model(), tp)


@dataclass(frozen=True, slots=True)
class _Part:
    """One stored tensor's share in a fused weight: these rows of `num_rows`."""

    name: str
    num_rows: int
    rows: slice

    @property
    def share(self) -> int:
        share: int = self.rows.stop - self.rows.start
        return share


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a rank's share of the weights under the names that Hugging Face checkpoints give them."""

    checkpoint: Checkpoint
    config: ModelConfig
    tp: TensorParallel
    dtype: torch.dtype
    device: torch.device

    def model(self) -> LlamaWeights:
        embedding = self._vocabulary("model.embed_tokens.weight")
        return LlamaWeights(
            embedding=embedding,
            layers=tuple(self._layer(f"model.layers.{i}") for i in range(self.config.num_layers)),
            final_norm=self._vector("model.norm.weight", self.config.hidden_size),
            lm_head=pack_weight(embedding if self.config.tie_word_embeddings else self._vocabulary("lm_head.weight")),
        )

    def _layer(self, name: str) -> LayerWeights:
        c, attention, mlp = self.config, f"{name}.self_attn", f"{name}.mlp"
        heads = self.tp.shard(c.num_heads, "num_attention_heads")
        kv_heads = self.tp.shard(c.num_kv_heads, "num_key_value_heads")
        inner = self.tp.shard(c.intermediate_size, "intermediate_size")
        q_rows, kv_rows = _scale(heads, c.head_dim), _scale(kv_heads, c.head_dim)
        return LayerWeights(
            attention_norm=self._vector(f"{name}.input_layernorm.weight", c.hidden_size),
            qkv=self._column_parallel(
                _Part(f"{attention}.q_proj", c.num_heads * c.head_dim, q_rows),
                _Part(f"{attention}.k_proj", c.num_kv_heads * c.head_dim, kv_rows),
                _Part(f"{attention}.v_proj", c.num_kv_heads * c.head_dim, kv_rows),
                bias=c.qkv_bias,
            ),
            qk_norm=self._qk_norm(attention, heads, kv_heads) if c.qk_norm else None,
            output=self._row_parallel(f"{attention}.o_proj", c.num_heads * c.head_dim, q_rows, bias=c.output_bias),
            mlp_norm=self._vector(f"{name}.post_attention_layernorm.weight", c.hidden_size),
            gate_up=self._column_parallel(
                _Part(f"{mlp}.gate_proj", c.intermediate_size, inner),
                _Part(f"{mlp}.up_proj", c.intermediate_size, inner),
                bias=c.mlp_bias,
            ),
            down=self._row_parallel(f"{mlp}.down_proj", c.intermediate_size, inner, bias=c.mlp_bias),
        )

    def _column_parallel(self, *parts: _Part, bias: bool) -> Linear:
        """The ranks' rows of several projections of the same input, one below the other."""
        num_rows = sum(part.share for part in parts)
        weight = self._empty(num_rows, self.config.hidden_size)
        biases = self._empty(num_rows) if bias else None
        first = 0
        for part in parts:
            fused = slice(first, first + part.share)
            shape = (part.num_rows, self.config.hidden_size)
            self.checkpoint.copy_into(weight[fused], f"{part.name}.weight", shape, rows=part.rows)
            if biases is not None:
                self.checkpoint.copy_into(biases[fused], f"{part.name}.bias", shape[:1], rows=part.rows)
            first = fused.stop
        return Linear(pack_weight(weight), biases)

    def _row_parallel(self, name: str, num_columns: int, columns: slice, *, bias: bool) -> Linear:
        """The rank's columns of a projection whose results are summed over ranks; the sum takes the bias once."""
        shape = (self.config.hidden_size, num_columns)
        weight = self._empty(self.config.hidden_size, columns.stop - columns.start)
        self.checkpoint.copy_into(weight, f"{name}.weight", shape, columns=columns)
        if not bias:
            return Linear(pack_weight(weight), None)
        biases = self._vector(f"{name}.bias", self.config.hidden_size)
        return Linear(pack_weight(weight), biases if self.tp.rank == 0 else torch.zeros_like(biases))

    def _qk_norm(self, attention: str, heads: slice, kv_heads: slice) -> Tensor:
        """[heads + kv_heads, head_dim]: the same weight for all query heads, another for all key heads."""
        q = self._vector(f"{attention}.q_norm.weight", self.config.head_dim)
        k = self._vector(f"{attention}.k_norm.weight", self.config.head_dim)
        return torch.stack([q] * (heads.stop - heads.start) + [k] * (kv_heads.stop - kv_heads.start))

    def _vocabulary(self, name: str) -> Tensor:
        vocab_size, share = self.config.vocab_size, self.tp.padded_share(self.config.vocab_size)
        rows = slice(min(self.tp.rank * share, vocab_size), min((self.tp.rank + 1) * share, vocab_size))
        weight = torch.zeros(share, self.config.hidden_size, dtype=self.dtype, device=self.device)
        held = weight[: rows.stop - rows.start]
        self.checkpoint.copy_into(held, name, (vocab_size, self.config.hidden_size), rows=rows)
        return weight

    def _vector(self, name: str, size: int) -> Tensor:
        vector = self._empty(size)
        self.checkpoint.copy_into(vector, name, (size,), rows=WHOLE)
        return vector

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)


def _scale(run: slice, factor: int) -> slice:
    return slice(run.start * factor, run.stop * factor)
