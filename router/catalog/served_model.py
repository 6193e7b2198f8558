"""A model that a router serves: where it is read from, and what the HTTP side needs of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.router.config.router_config import ContentFormat
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.sampling_defaults import PLAIN, GenerationConfigUse, SamplingDefaults
from slipstream.router.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`name` is what clients ask for, as are `aliases`. `directory` is only read for the tokenizer, the chat template
    and, unless `generation_config` is none, the defaults of requests. With `manifests`, those of the versions that are
    served, no other files than theirs are read."""

    name: str
    directory: Path
    generation_config: GenerationConfigUse = "auto"
    content_format: ContentFormat = "auto"
    manifests: tuple[Manifest, ...] = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`name` is what clients ask for, and `aliases` are further names of it; `defaults` are those of requests that
    leave fields of sampling out."""

    name: str
    tokenizer: Tokenizer
    defaults: SamplingDefaults = PLAIN
    aliases: tuple[str, ...] = ()
