"""A release: a version of the model together with its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.fleet import FleetError
from slipstream.router.catalog.sampling_defaults import SamplingDefaults


@dataclass(frozen=True, slots=True)
class Release:
    """A version and the configuration that it is made from. `content` is what `version_of` returned for it at the
    time."""

    version: str
    config: ClusterConfig
    path: str
    content: str


def check_same_text(old: ClusterConfig, new: ClusterConfig) -> None:
    """Raises FleetError if tokenizer, chat template or the sampling that generation_config.json recommends differ,
    because the router has one of each for all versions."""
    # imported here because it imports the tokenizers library
    from slipstream.router.text.tokenizer_files import TokenizerFiles

    try:
        before, after = (TokenizerFiles.read(Path(config.model.path)) for config in (old, new))
        defaults = [
            SamplingDefaults.read(Path(config.model.path), new.model.generation_config) for config in (old, new)
        ]
    except (OSError, ValueError) as error:
        raise FleetError("invalid", "config", f"model.path: {error}") from None
    for name, ours, theirs in (
        ("tokenizer", before.tokenizer_json, after.tokenizer_json),
        ("chat template", before.chat_template, after.chat_template),
        ("vocabulary size", before.vocab_size, after.vocab_size),
        ("tokenizer_config.json or special_tokens_map.json", before.config, after.config),
        ("sampling in generation_config.json", *defaults),
    ):
        if ours != theirs:
            reason = f"model.path: {new.model.path} has another {name} than what runs, which takes a new start"
            raise FleetError("invalid", "config", reason)
