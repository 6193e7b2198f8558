"""Further versions of the demo model: other weights or broken ones, with the same tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.e2e.serving_cluster import DEMO_MODEL

Values = NDArray[np.float32]


def perturbed_model(folder: Path, seed: int = 0) -> Path:
    """A copy whose final norm is scaled by random factors: it says other things, and still speaks."""
    _copy(folder)

    def shake(values: Values) -> Values:
        factors: Values = np.random.default_rng(seed).uniform(0.5, 1.5, values.shape).astype(np.float32)
        return values * factors

    _rewrite(folder, shake)
    return folder


def broken_model(folder: Path) -> Path:
    """A copy whose scores are no numbers."""
    _copy(folder)
    _rewrite(folder, lambda values: np.full_like(values, np.nan))
    return folder


def _copy(folder: Path) -> None:
    shutil.copytree(DEMO_MODEL, folder)


def _rewrite(folder: Path, change: Callable[[Values], Values]) -> None:
    """Changes `model.norm.weight` where it lies in its file."""
    for shard in folder.glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        header_bytes = int.from_bytes(data[:8], "little")
        tensor = json.loads(data[8 : 8 + header_bytes]).get("model.norm.weight")
        if tensor is None:
            continue
        begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
        if tensor["dtype"] == "F32":
            values = np.frombuffer(bytes(data[begin:end]), np.float32)
            data[begin:end] = change(values).astype(np.float32).tobytes()
        else:
            assert tensor["dtype"] == "BF16", tensor["dtype"]
            bits = np.frombuffer(bytes(data[begin:end]), np.uint16).astype(np.uint32) << 16
            changed = change(bits.view(np.float32)).astype(np.float32)
            data[begin:end] = (changed.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        shard.write_bytes(data)
        return
    raise AssertionError("no shard has model.norm.weight")
