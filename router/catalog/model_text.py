"""What a router reads of a model's files: tokenizer, chat template, format of outputs, defaults of requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.catalog.served_model import ModelSource, ServedModel
from slipstream.router.model_files.cache.version_files import fetch_text
from slipstream.router.model_files.sampling_defaults import SamplingDefaults
from slipstream.router.model_files.text_copy import read_text
from slipstream.router.text.tokenizer import Tokenizer
from slipstream.router.text.tokenizer_files import read_json


@dataclass(frozen=True, slots=True)
class ModelText:
    """The text of a model, or of a version whose files differ: all of them that the HTTP side needs to make tokens of
    messages, and answers of tokens. `max_positions` is the longest sequence that it allows; None: its config.json does
    not say."""

    tokenizer: Tokenizer
    outputs: ModelOutputs
    defaults: SamplingDefaults
    max_positions: int | None


def served_by(source: ModelSource, text: ModelText) -> ServedModel:
    return ServedModel(source.name, text.tokenizer, text.defaults, source.aliases, text.outputs)


def read_model(source: ModelSource, pool: ThreadPoolExecutor) -> ModelText:
    """Blocks. Raises ValueError or OSError, which name the model's directory or file."""

    def read(folder: Path) -> ModelText:
        outputs = read_outputs(source, pool, folder)
        defaults = SamplingDefaults.read(folder, source.generation_config)
        return ModelText(outputs.tokenizer, outputs, defaults, model_positions(folder))

    fetch_text(source.directory, source.manifests)
    return read_text(source.directory, source.manifests, read)


def read_served(source: ModelSource, defaults: SamplingDefaults, pool: ThreadPoolExecutor) -> ServedModel:
    """Like `read_model`, of a model whose files this host has, and whose `defaults` are known."""
    outputs = read_text(source.directory, source.manifests, partial(read_outputs, source, pool))
    return ServedModel(source.name, outputs.tokenizer, defaults, source.aliases, outputs)


def read_outputs(source: ModelSource, pool: ThreadPoolExecutor, folder: Path) -> ModelOutputs:
    """Blocks. Raises ValueError or OSError, which name the model's directory or file."""
    tokenizer = Tokenizer.from_directory(folder, pool, source.content_format)
    return ModelOutputs.of(tokenizer, read_json(folder / "config.json"), source.parsers)


def model_positions(model_dir: Path) -> int | None:
    """The longest sequence that a model allows, if its config.json says so. Raises ValueError if that is not valid
    JSON."""
    longest = read_json(model_dir / "config.json").get("max_position_embeddings")
    return longest if isinstance(longest, int) else None
