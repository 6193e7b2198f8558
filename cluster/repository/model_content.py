"""Identifies what a configuration serves: by the content of the model's files and the settings that affect results."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_128

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.router.model_files.file_digest import DigestCache
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.sampling_defaults import PLAIN, SamplingDefaults
from slipstream.router.text.tokenizer_files import stated_vocab_size
from slipstream.workers.models.directory.json_keys import read_json

NUM_DIGITS = 8
# The settings of an engine that affect its results.
NUMERIC = ("dtype", "quantization", "kv_cache_dtype", "cpu_kernels", "device")


@dataclass(frozen=True, slots=True)
class ModelContent:
    """What a configuration serves. `name` is `model.version` or follows from the content. `digest` is the same for the
    same content under every name."""

    name: str
    digest: str
    manifest: Manifest
    vocab_size: int | None = None  # as config.json says
    sampling: SamplingDefaults = PLAIN  # that requests get by default


def content_of(config: ClusterConfig, *, is_fresh: bool = False) -> ModelContent:
    """Reads the files that were not read since they were last changed; with `is_fresh` all of them, for file systems
    that do not note every change. Raises OSError or ValueError if they cannot be read."""
    model_dir = Path(config.model.path)
    manifest = Manifest.read(model_dir, DigestCache.of_user(), is_fresh=is_fresh)
    digest = xxh3_128(manifest.digest.encode())
    for role, pool in config.pools():
        settings = {key: getattr(pool.engine, key) for key in NUMERIC}
        digest.update(json.dumps([role, settings], sort_keys=True).encode())
    content = digest.hexdigest()
    name = config.model.version
    return ModelContent(
        name=content[:NUM_DIGITS] if name is None else str(name),
        digest=content,
        manifest=manifest,
        vocab_size=stated_vocab_size(read_json(model_dir / "config.json")),
        sampling=SamplingDefaults.read(model_dir, config.model.generation_config),
    )


def unused_name(name: str, used: Collection[str]) -> str:
    """The name or, if that has been used, one with a number. What has other content, or runs with other settings, must
    have another name, so that KV and answers of the two never meet."""
    names = (name, *(f"{name}-{number}" for number in range(2, len(used) + 3)))
    return next(one for one in names if one not in used)
