"""The entry of `models` for a language model that a repository names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.model_location import ModelFiles
from slipstream.cluster.sizing.chosen_config import machine_in_words, settings_of
from slipstream.cluster.sizing.machine_facts import MachineFacts
from slipstream.cluster.sizing.pool_choice import SizingChoice
from slipstream.cluster.sizing.serve_target import choice_for
from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.model_files.sources.weights_url import WeightsUrl, WeightsUrlError
from slipstream.router.status.wanted_models import WantedModel

POOLS = ("engine", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Room:
    """How many further workers, and GPUs for them, there may be; None: any number."""

    workers: int | None = None
    gpus: int | None = None

    def of(self, machine: MachineFacts, path: str) -> MachineFacts:
        """The machine with the GPUs that are left, which are those with the most memory free. Raises ConfigError."""
        num_gpus = len(machine.gpu_bytes)
        if self.gpus is None or self.gpus >= num_gpus:
            return machine
        if not self.gpus:
            raise ConfigError([f"{path}: no GPU is free: all {num_gpus} are reserved"])
        return replace(machine, gpu_bytes=tuple(sorted(machine.gpu_bytes))[-self.gpus :])


def chosen_entry(
    model: WantedModel, machine: MachineFacts, room: Room, files: ModelFiles, cache: ModelCacheConfig
) -> str:
    """A file for `slipstream models add`: the pools that `slipstream serve MODEL` would choose, as far as there is
    room, with the model's own settings in the place of those. Further names come later, when they are free. Raises
    ConfigError."""
    machine = room.of(machine, model.path)
    try:
        url = WeightsUrl.parse(model.path)
        directory = Path(model.path) if url is None else files.local(url, None, cache)[0]
    except (SourceError, WeightsUrlError) as error:
        raise ConfigError([str(error)]) from None
    named = Path(model.path) if url is None else url
    choice, _ = choice_for(named, directory, machine)
    pools = settings_of(within(choice, room.workers), named)
    entry = {"path": model.path, "name": model.name} | {key: pools[key] for key in POOLS}
    lines = [f"# Chosen by Slipstream for a model of the repository, on {machine_in_words(machine)}.", ""]
    merged = laid_over(entry, {key: value for key, value in model.settings.items() if key != "aliases"})
    return "\n".join(lines) + yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)


def within(choice: SizingChoice, max_workers: int | None) -> SizingChoice:
    """The choice with at most so many workers, of which one decodes. Prefill workers are given up first."""
    if max_workers is None:
        return choice
    num_prefill = min(choice.prefill.replicas, max(0, max_workers - 1))
    num_decode = min(choice.decode.replicas, max(1, max_workers - num_prefill))
    return replace(
        choice,
        prefill=replace(choice.prefill, replicas=num_prefill),
        decode=replace(choice.decode, replicas=num_decode),
    )


def laid_over(settings: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Both together; where both have a key, the further settings count, in sections key by key."""
    merged = dict(settings)
    for key, value in further.items():
        before = merged.get(key)
        is_section = isinstance(value, Mapping) and isinstance(before, Mapping)
        merged[key] = laid_over(before or {}, value) if is_section else value
    return merged
