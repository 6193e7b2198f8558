"""The pools of the language models that a repository names, as `slipstream models add` would make them."""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.parse
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.fleet.author import REPOSITORY
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.fleet.update_plan import UpdateOptions
from slipstream.cluster.models.model_admin import ModelAdmin
from slipstream.cluster.models.model_services import ModelServices
from slipstream.cluster.models.pool_step import ServedPools, asked_as
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.models.supervised_cluster import SupervisedCluster
from slipstream.cluster.sizing.chosen_entry import Room, chosen_entry
from slipstream.cluster.sizing.machine_facts import read_machine
from slipstream.cluster.state.state_file import StateFile
from slipstream.router.status.wanted_models import WantedModel

log = logging.getLogger(__name__)

OWNERS = 0o600  # the mode of a file that only its owner can read: there may be secrets in an address


class WantedPools:
    """PoolControl. The entry of each model is written into `folder`, where operators can read what was chosen."""

    def __init__(
        self,
        cluster: SupervisedCluster,
        models: ServedModels,
        services: ModelServices,
        admin: ModelAdmin,
        state_file: StateFile,
        folder: Path,
    ) -> None:
        self._cluster = cluster
        self._models = models
        self._services = services
        self._admin = admin
        self._state_file = state_file
        self._folder = folder

    @property
    def names(self) -> Collection[str]:
        return [model.model for model in self._state_file.state.models]

    def of(self, name: str) -> ServedPools | None:
        try:
            state = self._state_file.state.of_model(name)
        except KeyError:
            return None
        return ServedPools(state.asked, state.is_leaving)

    async def add(self, model: WantedModel) -> None:
        path = self._path(model)
        try:
            await self._admin.add(path, REPOSITORY, asked_as(model), partial(self._write, model))
        except FleetError as error:
            raise FleetError(error.kind, error.field, without_place(path, error.reason)) from None

    async def exchange(self, model: WantedModel) -> None:
        path = self._path(model)
        await asyncio.to_thread(self._write, model, path)
        updater = self._services.updaters.of(model.name)
        await updater.until_idle()
        try:
            await updater.begin(path, UpdateOptions(), REPOSITORY, may_be_same=True)
        except FleetError as error:
            raise FleetError(error.kind, error.field, without_place(path, error.reason)) from None
        await updater.until_idle()
        if updater.status is not None and updater.status.phase != "done":
            raise FleetError("unavailable", "update", updater.status.reason or updater.status.line)
        self._state_file.state.of_model(model.name).asked = asked_as(model)
        self._state_file.write()

    async def until_served(self, name: str) -> None:
        await self._admin.until_served(name)

    async def remove(self, name: str) -> None:
        await self._services.updaters.of(name).until_idle()
        await self._admin.remove(name, REPOSITORY)

    async def until_removed(self, name: str) -> None:
        await self._admin.until_removed(name)

    async def set_aliases(self, aliases: Mapping[str, tuple[str, ...]]) -> None:
        """Names that operators have given to these models stay."""
        entries = {entry.name: entry for entry in self._models.config.entries()}
        managed = {alias for own in aliases.values() for alias in own}
        now = {name: entries[name].aliases for name in aliases if name in entries}
        own = {name: [one for one in before if one not in managed] for name, before in now.items()}
        kept = {name: [*own[name], *(one for one in now[name] if one in aliases[name])] for name in now}
        full = {name: [*own[name], *(one for one in aliases[name] if one not in entries)] for name in now}
        for wanted in (kept, full):  # what one model loses, another one may get
            for name, names in wanted.items():
                if set(names) != set(self._models.entry(name).aliases):
                    try:
                        await self._admin.set_aliases(name, names, REPOSITORY)
                    except FleetError as error:
                        log.warning("%s is not called %s: %s", name, ", ".join(names), error.reason)

    def _path(self, model: WantedModel) -> Path:
        return self._folder / f"{self._models.config.name}--{urllib.parse.quote(model.name, safe='')}.yaml"

    def _write(self, model: WantedModel, path: Path) -> None:
        """Writes the entry of a model, with the pools that are chosen for it. Blocks. Raises FleetError."""
        config, fleet = self._models.config, self._cluster.fleet
        repository, gpus = config.repository, fleet.num_free_gpus
        if gpus is not None:
            gpus = max(0, gpus - repository.hosts * repository.num_gpus)  # which instances have
        try:
            room = Room(fleet.num_free, gpus)
            text = chosen_entry(model, read_machine(), room, self._services.downloads, config.model_cache)
        except ConfigError as error:
            raise FleetError("invalid", "config", "; ".join(error.problems)) from None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=OWNERS)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FleetError("unavailable", "config", f"{path}: {error.strerror or error}") from None


def without_place(path: Path, reason: str) -> str:
    """A reason of which each line begins with a place in the file, without that: those who wanted the model have not
    written the file."""
    return "; ".join(re.sub(rf"^{re.escape(str(path))}(:\d+)?: ", "", line) for line in reason.splitlines())
