"""A release: a version of the model together with its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.repository.model_content import ModelContent
from slipstream.router.model_files.file_digest import DigestCache
from slipstream.router.model_files.manifest import is_text


@dataclass(frozen=True, slots=True)
class Release:
    """A version and the configuration that it is made from. `content` is what the model's files were at the time."""

    version: str
    config: ClusterConfig
    path: str
    content: ModelContent

    def files_gone(self, cache: DigestCache, *, ignores_weights: bool = False) -> str | None:
        """One sentence about the first of its files that is gone or has other content now; None if all are there."""
        model_dir = Path(self.config.model.path)
        return self.content.manifest.difference(model_dir, cache, ignores_weights=ignores_weights)


def other_text(old: Release, config: ClusterConfig, content: ModelContent, cache: DigestCache) -> str | None:
    """What of tokenizer, chat template and recommended sampling is another one in the next release, so that text has to
    be tokenised for the version that will serve it; None if all are the same. Raises FleetError."""
    is_gone = old.files_gone(cache, ignores_weights=True) is not None
    other = next(_other_files(old, content) if is_gone else _other_meanings(old.config, config), None)
    if old.content.sampling != content.sampling:
        other = other or "sampling in generation_config.json"
    return other


def _other_files(old: Release, content: ModelContent) -> Iterator[str]:
    """What differs by its bytes: where files were overwritten, no more is known of the old ones."""
    before, after = (
        {file.name: file.content.digest for file in one.manifest.files if is_text(file.name)}
        for one in (old.content, content)
    )
    yield from (name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name))
    if old.content.vocab_size != content.vocab_size:
        yield "vocabulary size"


def _other_meanings(old: ClusterConfig, new: ClusterConfig) -> Iterator[str]:
    """What differs by its meaning. Raises FleetError if files cannot be read."""
    # Imported here because it imports the tokenizers library.
    from slipstream.router.text.tokenizer_files import TokenizerFiles

    try:
        before, after = (TokenizerFiles.read(Path(config.model.path)) for config in (old, new))
    except (OSError, ValueError) as error:
        raise FleetError("invalid", "config", f"model.path: {error}") from None
    for name, ours, theirs in (
        ("tokenizer", before.tokenizer_json, after.tokenizer_json),
        ("chat template", before.chat_template, after.chat_template),
        ("vocabulary size", before.vocab_size, after.vocab_size),
        ("tokenizer_config.json or special_tokens_map.json", before.config, after.config),
    ):
        if ours != theirs:
            yield name
