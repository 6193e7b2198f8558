"""A cap of scores that stays smooth, as Gemma 2 has it."""

from __future__ import annotations

from torch import Tensor


def softcap(scores: Tensor, cap: float | None) -> Tensor:
    """`cap * tanh(scores / cap)` in place; None caps nothing."""
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)
