"""MXFP4: runs of numbers of four bits, e2m1, with a power of two as their scale.

https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
"""

from __future__ import annotations

import torch
from torch import Tensor

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the codes 0 .. 7; 8 .. 15 are these with a minus
SCALE_BIAS = 127


def from_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """`blocks` [rows, groups, bytes], two codes a byte and the first in the lower half, times 2^(`scales` [rows,
    groups] - 127): [rows, groups * bytes * 2] in bfloat16."""
    values = torch.tensor([*VALUES, *(-value for value in VALUES)])
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).long()
    widened = torch.ldexp(values[codes].flatten(2), scales[..., None].int() - SCALE_BIAS)
    return widened.flatten(1).bfloat16()
