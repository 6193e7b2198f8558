"""What `scripts/gpu_check` measures: one case a kernel and shape, with the bytes and FLOPs that its floor follows from.

A kernel's file lists its cases:

    def benchmark_cases() -> tuple[Case, ...]     what is measured and has a target
    def tune_cases() -> tuple[Case, ...]          the same work under other configurations, for `--tune`; optional
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import torch

# Four times the L2 of an H200: what is read again was thrown out in between.
ROTATED_BYTES = 240 << 20
MAX_SETS = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement of one kernel.

    `setup(device)` makes random inputs and returns what is timed: a call that only enqueues work on the current stream,
    without a host sync, so that it can be captured in a CUDA graph. Where the inputs fit in the L2 cache (60 MB on an
    H200), each call takes the next of several sets of them.
    """

    name: str  # "decode_attention bf16 64 x 4k"
    setup: Callable[[torch.device], Callable[[], object]]
    num_bytes: int = 0  # each input read once, each output written once
    num_flops: int = 0  # multiplications and additions of the matrix products
    target: float | None = None  # at least this share of the ceiling reached

    def floor_s(self, bytes_per_s: float, flops_per_s: float) -> float:
        """The time that no kernel can beat under ceilings measured in the same run."""
        return max(self.num_bytes / bytes_per_s, self.num_flops / flops_per_s)


def rotated(
    make: Callable[[torch.device], Callable[[], object]], set_bytes: int
) -> Callable[[torch.device], Callable[[], object]]:
    """A `setup` over as many sets of inputs, of `set_bytes` each, as the L2 cannot hold: `make(device)` makes one set
    and returns the call on it, and each call takes the next."""
    num_sets = max(1, min(MAX_SETS, -(-ROTATED_BYTES // set_bytes)))

    def setup(device: torch.device) -> Callable[[], object]:
        calls = cycle([make(device) for _ in range(num_sets)])
        return lambda: next(calls)()

    return setup
