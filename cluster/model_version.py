"""Derives the version of a model that has no explicit one, from its weights and the settings that affect its results.

Reading all weights of a large model would take minutes at every start. So for each tensor only some bytes from its
middle are read, beside its name, type and shape. That is enough, because training changes nearly all numbers of a
tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from xxhash import xxh3_64

from slipstream.cluster.config import ClusterConfig

SAMPLE_BYTES = 256  # per tensor
NUM_DIGITS = 8
# The settings of an engine that affect its results.
NUMERIC = ("dtype", "quantization", "kv_cache_dtype", "cpu_kernels", "device")


def version_of(config: ClusterConfig) -> str:
    """`model.version`, or a name derived from the content. Raises OSError or ValueError if files cannot be read."""
    if config.model.version is not None:
        return str(config.model.version)
    digest = xxh3_64()
    for part in content_of(Path(config.model.path)):
        digest.update(part)
    for role, pool in config.pools():
        settings = {key: getattr(pool.engine, key) for key in NUMERIC}
        digest.update(json.dumps([role, settings], sort_keys=True).encode())
    return digest.hexdigest()[:NUM_DIGITS]


def content_of(model_dir: Path) -> Iterator[bytes]:
    """Bytes that are different for different models."""
    for name in ("config.json", "generation_config.json"):
        path = model_dir / name
        if path.exists():
            yield path.read_bytes()
    for shard in sorted(model_dir.glob("*.safetensors")):
        with shard.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            header = file.read(min(header_bytes, size))
            yield header
            for name, tensor in sorted(json.loads(header).items()):
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    at = begin + max(end - begin - SAMPLE_BYTES, 0) // 2
                    yield os.pread(file.fileno(), min(SAMPLE_BYTES, end - begin), 8 + header_bytes + at)
