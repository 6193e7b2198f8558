"""A model that a router serves: where it is read from, and what the HTTP side needs of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.config.router_config import ContentFormat, DispatchConfig
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.sampling_defaults import PLAIN, GenerationConfigUse, SamplingDefaults
from slipstream.router.parsers.parser_names import DETECTED, ParserNames
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`name` is what clients ask for, as are `aliases`. `directory` is only read for the tokenizer, the chat template
    and, unless `generation_config` is none, the defaults of requests. With `manifests`, those of the versions that are
    served, no other files than theirs are read.

    With `text_of`, it is not a model of its own, but the text of that version of the model: tokenizer, chat template
    and defaults, where these are others than the model's. `parsers` read its outputs.

    `dispatch` None: the model is dispatched by the router's settings. With `has_prefill_pool` it is ready only after a
    request has gone through a prefill group; without it, that first request uses a prefill group if there is one.
    Where models divide the memory of a host, `weight` is what this one counts."""

    name: str
    directory: Path
    generation_config: GenerationConfigUse = "auto"
    content_format: ContentFormat = "auto"
    manifests: tuple[Manifest, ...] = ()
    aliases: tuple[str, ...] = ()
    dispatch: DispatchConfig | None = None
    has_prefill_pool: bool = False
    text_of: str = ""
    weight: float = 1.0
    parsers: ParserNames = DETECTED

    @property
    def key(self) -> str:
        """Unique among the models and texts of a router."""
        return str(ModelId(self.name, self.text_of))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`name` is what clients ask for, and `aliases` are further names of it; `defaults` are those of requests that
    leave fields of sampling out. Without `outputs`, these are only text."""

    name: str
    tokenizer: Tokenizer
    defaults: SamplingDefaults = PLAIN
    aliases: tuple[str, ...] = ()
    outputs: ModelOutputs | None = None
