"""Models in the shapes of published ones, with random weights made on the device, and what a step of them must move."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.kernels.ops import Ops, Weight
from slipstream.kernels.pages.quantized_kv import codes_and_scales, head_bytes
from slipstream.kernels.quantization.quantized_weight import Fp8Weight, quantize_fp8
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.interface.weight_source import Linear
from slipstream.workers.models.llama import LayerWeights, Llama, LlamaWeights
from slipstream.workers.models.ops_model import OpsModel

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": LLAMA3_ROPE,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
    "bos_token_id": 128000,
}
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_parameters": {**LLAMA3_ROPE, "factor": 32.0},
    },
    "Llama-3.1-8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
TINY: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
}


@dataclass(frozen=True, slots=True)
class Form:
    """What a model's products and its pages are kept in."""

    name: str
    fp8_weights: bool = False
    fp8_kv: bool = False


BF16, FP8, FP8_KV = Form("bf16"), Form("fp8", fp8_weights=True), Form("fp8, fp8 KV", fp8_weights=True, fp8_kv=True)
FORMS = (BF16, FP8, FP8_KV)
WEIGHT_SCALE = 0.02  # standard deviation, as models are initialised with


def hf_config(name: str) -> dict[str, Any]:
    """What the shape's config.json says."""
    return {**COMMON, **(SHAPES | TINY)[name]}


def read_config(name: str) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(hf_config(name)), encoding="utf-8")
        return ModelConfig.read(folder)


def random_model(config: ModelConfig, ops: Ops, device: torch.device, *, fp8: bool) -> OpsModel:
    """In bfloat16, with `fp8` all products of the layers in fp8 with a scale a channel (the head stays as it is)."""
    maker = _Maker(ops, device, fp8)
    embedding = maker.matrix(config.vocab_size, config.hidden_size)
    head = embedding if config.tie_word_embeddings else maker.matrix(config.vocab_size, config.hidden_size)
    weights = LlamaWeights(
        embedding=embedding,
        layers=tuple(maker.layer(config) for _ in range(config.num_layers)),
        final_norm=maker.norm(config.hidden_size),
        lm_head=ops.pack_weight(head),
    )
    tp = TensorParallel()
    return OpsModel(config, Llama(config, weights, tp, ops), tp)


@dataclass(frozen=True, slots=True)
class _Maker:
    ops: Ops
    device: torch.device
    fp8: bool

    def layer(self, c: ModelConfig) -> LayerWeights:
        return LayerWeights(
            attention_norm=self.norm(c.hidden_size),
            qkv=self._linear((c.num_heads + 2 * c.num_kv_heads) * c.head_dim, c.hidden_size),
            qk_norm=None,
            output=self._linear(c.hidden_size, c.num_heads * c.head_dim),
            mlp_norm=self.norm(c.hidden_size),
            gate_up=self._linear(2 * c.intermediate_size, c.hidden_size),
            down=self._linear(c.hidden_size, c.intermediate_size),
        )

    def matrix(self, num_outputs: int, num_inputs: int) -> Tensor:
        return torch.randn(num_outputs, num_inputs, device=self.device, dtype=torch.bfloat16).mul_(WEIGHT_SCALE)

    def norm(self, size: int) -> Tensor:
        return torch.rand(size, device=self.device, dtype=torch.bfloat16).add_(0.5)

    def _linear(self, num_outputs: int, num_inputs: int) -> Linear:
        weight = self.matrix(num_outputs, num_inputs)
        return Linear(quantize_fp8(weight) if self.fp8 else self.ops.pack_weight(weight), None)


def weight_bytes(model: OpsModel) -> int:
    """What a decode step must read of the weights: all products, and nothing of an embedding that is not the head."""
    assert isinstance(model.decoder, Llama)
    weights = model.decoder.weights
    linears = [linear for layer in weights.layers for linear in _linears(layer)]
    return sum(_bytes(weight) for weight in [*(linear.weight for linear in linears), weights.lm_head])


def kv_token_bytes(config: ModelConfig, form: Form) -> int:
    """Keys and values of one token in all layers."""
    head = head_bytes(1, config.head_dim) if form.fp8_kv else 2 * 2 * config.head_dim
    return config.num_layers * config.num_kv_heads * head


def random_pool(config: ModelConfig, form: Form, num_pages: int, page_tokens: int, device: torch.device) -> Tensor:
    """A pool of random keys and values, of a magnitude that a softmax has use for."""
    pages = (config.num_layers, num_pages, config.num_kv_heads)
    if not form.fp8_kv:
        return torch.randn(*pages, 2, page_tokens, config.head_dim, device=device, dtype=torch.bfloat16)
    kv = torch.empty(*pages, head_bytes(page_tokens, config.head_dim), device=device, dtype=torch.float8_e4m3fn)
    codes, scales = codes_and_scales(kv, config.head_dim)
    for layer in codes.view(torch.uint8):
        layer.random_(0, 0x7E)  # all that are numbers, and positive
    scales.fill_(1 / 64)
    return kv


def prefill_flops(config: ModelConfig, num_tokens: int) -> int:
    """Multiplications and additions of a prompt: products of the layers, causal attention, the last token's scores."""
    c = config
    layer = c.hidden_size * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim  # qkv
    layer += c.num_heads * c.head_dim * c.hidden_size + 3 * c.hidden_size * c.intermediate_size
    pairs = num_tokens * (num_tokens + 1) // 2
    attention = 4 * pairs * c.num_heads * c.head_dim
    return c.num_layers * (2 * num_tokens * layer + attention) + 2 * c.vocab_size * c.hidden_size


def _linears(layer: LayerWeights) -> tuple[Linear, ...]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def _bytes(weight: Weight) -> int:
    match weight:
        case Tensor():
            return weight.numel() * weight.element_size()
        case Fp8Weight(codes, scales, _):
            return codes.numel() + 4 * scales.numel()
        case _:
            raise TypeError(f"no weight of this check: {type(weight).__name__}")
