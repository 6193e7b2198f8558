"""Rotary frequencies and how each kind of context stretching changes them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.rope_config import LinearScaling, Llama3Scaling, Rope, YarnScaling


def rotary_frequencies(config: ModelConfig, rope: Rope | None = None) -> tuple[Tensor, float]:
    """([head_dim / 2] angle per position in float32, factor on cosines and sines). `rope` None: that of the layers
    without a window."""
    rope = config.rope if rope is None else rope
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inv_freq = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return inv_freq, 1.0
        case LinearScaling(factor):
            return inv_freq / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(inv_freq, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(inv_freq, scaling, config.head_dim, rope.theta), _yarn_attention_factor(scaling)


def _llama3(inv_freq: Tensor, scaling: Llama3Scaling) -> Tensor:
    """By how often a frequency turns within the original context: rarely, divided; often, kept; between, a blend.

    After `apply_scaling` of https://github.com/meta-llama/llama-models.
    """
    turns = scaling.original_max_positions * inv_freq / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0, 1)
    return (1 - keep) * inv_freq / scaling.factor + keep * inv_freq


def _yarn(inv_freq: Tensor, scaling: YarnScaling, head_dim: int, theta: float) -> Tensor:
    """NTK by parts, section 3.2 of https://arxiv.org/abs/2309.00071."""

    def dimension_that_turns(times: float) -> float:
        turns = scaling.original_max_positions / (times * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    low, high = dimension_that_turns(scaling.beta_fast), dimension_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp must have a width
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return inv_freq / scaling.factor * ramp + inv_freq * (1 - ramp)


def _yarn_attention_factor(scaling: YarnScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def stretch(mscale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * mscale * math.log(scaling.factor) + 1.0

    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        return stretch(scaling.mscale) / stretch(scaling.mscale_all_dim)
    return stretch(1.0)
