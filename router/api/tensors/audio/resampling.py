"""Changes the sample rate of audio, by a windowed sinc (https://ccrma.stanford.edu/~jos/resample/)."""

from __future__ import annotations

import math

import numpy as np

from slipstream.router.api.tensors.models.tensor_arrays import Array

ZERO_CROSSINGS = 16  # of the sinc, on either side
BLOCK = 1 << 16  # outputs at a time, which bounds the memory


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """`samples` [frames] of float32 at `rate`, at the rate `wanted`."""
    if rate == wanted or not len(samples):
        return samples
    divisor = math.gcd(rate, wanted)
    up, down = wanted // divisor, rate // divisor
    cutoff = min(1.0, wanted / rate)
    half = math.ceil(ZERO_CROSSINGS / cutoff)
    num_outputs = -(-len(samples) * up // down)
    padded = np.pad(samples.astype(np.float32), (half, half + down))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half)
    output = np.zeros(num_outputs, np.float32)
    for phase in range(min(up, num_outputs)):
        whole, part = divmod(phase * down, up)
        kernel = kernel_of(half, cutoff, part / up)
        count = -(-(num_outputs - phase) // up)
        for begin in range(0, count, BLOCK):
            end = min(begin + BLOCK, count)
            first = whole + 1 + begin * down
            chosen = windows[first : first + (end - begin - 1) * down + 1 : down]
            output[phase + begin * up : phase + (end - 1) * up + 1 : up] = chosen @ kernel
    return output


def kernel_of(half: int, cutoff: float, fraction: float) -> Array:
    """The weights of the samples around an output that lies `fraction` behind a sample."""
    distances = np.arange(1 - half, half + 1) - fraction
    window = np.cos(np.pi / 2 * np.clip(distances / half, -1, 1)) ** 2
    weights = np.sinc(cutoff * distances) * window
    kernel: Array = (weights / weights.sum()).astype(np.float32)
    return kernel
