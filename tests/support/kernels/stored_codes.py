"""4-bit codes packed bit by bit, as the libraries that quantise store them."""

from __future__ import annotations

import torch
from torch import Tensor


def word(nibbles: list[int]) -> int:
    """Eight nibbles, the first lowest, as a signed 32-bit integer."""
    value = sum(nibble << 4 * i for i, nibble in enumerate(nibbles))
    return value - 2**32 if value >= 2**31 else value


def awq_tensors(codes: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """`codes` [in, out] and `zeros` [groups, out] as AutoAWQ's gemm version packs them."""

    def pack(matrix: Tensor) -> Tensor:
        rows = matrix.tolist()
        packed = [
            [word([row[at + k] for k in (0, 2, 4, 6, 1, 3, 5, 7)]) for at in range(0, len(row), 8)] for row in rows
        ]
        return torch.tensor(packed, dtype=torch.int32)

    return pack(codes), pack(zeros)


def gptq_tensors(codes: Tensor, zeros: Tensor, minus_one: bool) -> tuple[Tensor, Tensor]:
    """`codes` [in, out] and `zeros` [groups, out] as AutoGPTQ packs them: codes along inputs, zeros along outputs."""
    columns = codes.t().tolist()
    qweight = [[word(column[at : at + 8]) for at in range(0, len(column), 8)] for column in columns]
    stored = (zeros.long() - int(minus_one)) % 16
    qzeros = [[word(row[at : at + 8]) for at in range(0, len(row), 8)] for row in stored.tolist()]
    return torch.tensor(qweight, dtype=torch.int32).t(), torch.tensor(qzeros, dtype=torch.int32)
