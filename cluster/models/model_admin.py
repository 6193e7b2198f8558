"""Adds models to a running cluster, removes them, and changes their aliases (`ModelsPort`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.cluster.admin_api.models_port import ModelInfo
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_warnings import Machine, warnings_about
from slipstream.cluster.config.loading.model_file import entries_of
from slipstream.cluster.config.model_entry import ModelEntry
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.fleet.author import REPOSITORY, Author
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.model_services import ModelServices
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.models.supervised_cluster import SupervisedCluster
from slipstream.cluster.models.version_name import name_version
from slipstream.cluster.ray.bundles import CannotPlace
from slipstream.cluster.repository.model_content import ModelContent, content_of
from slipstream.cluster.state.model_state import ModelState
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.supervisor.start_bound import start_bound
from slipstream.cluster.supervisor.supervisor import StartFailed
from slipstream.cluster.terminal.console import Console


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model that is to be added: its configuration alone, and the content of its files."""

    entry: ModelEntry
    config: ClusterConfig
    content: ModelContent


class ModelAdmin:
    def __init__(
        self,
        cluster: SupervisedCluster,
        models: ServedModels,
        services: ModelServices,
        state_file: StateFile,
        changes: ChangeLog,
        console: Console,
    ) -> None:
        self._cluster = cluster
        self._models = models
        self._services = services
        self._state_file = state_file
        self._state = state_file.state
        self._changes = changes
        self._console = console
        self._adding = asyncio.Lock()  # so that two callers do not take the same name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._has_resumed = asyncio.Event()

    def models(self) -> tuple[ModelInfo, ...]:
        return tuple(map(self._info, self._models.config.entries()))

    def _info(self, entry: ModelEntry) -> ModelInfo:
        model, fleet = self._state.of_model(entry.name), self._cluster.fleet.of_model(entry.name).state()
        phase, reason = self._state.phase_of(model)
        return ModelInfo(
            entry.name,
            entry.aliases,
            model.version,
            phase,
            reason,
            fleet.num_prefill,
            fleet.num_decode,
            sum(member.state == "ready" for member in fleet.members),
            entry.path,
            model.config,
        )

    async def add(
        self, path: Path, by: Author, asked: str = "", write: Callable[[Path], None] | None = None
    ) -> list[str]:
        """Adds the models in a file, which are for what the repository has `asked`, if anything. `write` makes the file
        first, on a thread; all models that were added before have their groups then. If the caller goes away, they are
        added all the same. Raises FleetError."""
        task = asyncio.create_task(self._add(path, by, asked, write), name=f"add {path}")
        self._keep(task)
        return await asyncio.shield(task)

    async def _add(self, path: Path, by: Author, asked: str, write: Callable[[Path], None] | None) -> list[str]:
        begun: list[NewModel] = []
        async with self._adding:
            if write is not None:
                await asyncio.to_thread(write, path)
            new = await asyncio.to_thread(self._read, path)
            try:
                for model in new:
                    begun.append(model)
                    await self._begin(model, path, asked)
                    await self._start_groups(model)
            except Exception:
                await self._give_up(begun)
                raise
        try:
            await asyncio.gather(*(self.until_served(model.entry.name) for model in new))
        except Exception:
            await self._give_up(begun)
            raise
        for model in new:
            self._changes.note(by, "model", model.entry.name, "", "added", model=model.entry.name)
            self._console.event(f"model {model.entry.name} has been added")
        return [model.entry.name for model in new]

    def _read(self, path: Path) -> list[NewModel]:
        """Reads the file and those of its models. Blocks. Raises FleetError."""
        running = self._models.config
        try:
            entries = entries_of(path, running, self._warn, self._services.downloads)
        except ConfigError as error:
            raise FleetError("invalid", "config", str(error)) from None
        taken = {name for entry in running.entries() for name in (entry.name, *entry.aliases)}
        for entry in entries:
            if (twice := next((name for name in (entry.name, *entry.aliases) if name in taken), None)) is not None:
                raise FleetError("conflict", "config", f"{path}: a model called {twice} is served already")
        try:
            config = running.with_models([*running.entries(), *entries])
        except ValueError as error:
            raise FleetError("invalid", "config", f"{path}: {error}") from None
        self._check_budget(path, entries)
        for warning in warnings_about(config, Machine.this()):
            self._warn(warning)
        return [NewModel(entry, config.alone(entry), _content(path, config.alone(entry))) for entry in entries]

    def _check_budget(self, path: Path, entries: Sequence[ModelEntry]) -> None:
        pools = [pool for one in entries for pool in (one.prefill, one.decode)]
        num_gpus = sum(pool.replicas * pool.tp * (pool.num_gpus or 0.0) for pool in pools)
        try:
            self._cluster.fleet.check_budget(sum(pool.replicas for pool in pools), num_gpus)
        except FleetError as error:
            raise FleetError(error.kind, "config", f"{path}: {error.reason}") from None

    async def _begin(self, new: NewModel, path: Path, asked: str) -> None:
        """Makes all parts of the cluster know the model. Raises FleetError."""
        name, cluster = new.entry.name, self._cluster
        state = ModelState(name, str(path), asked=asked)
        name_version(state, new.content, new.entry.path)
        self._state.further.append(state)
        deployment = replace(
            cluster.first,
            config=new.config,
            version=state.version,
            manifest=new.content.manifest,
            weight=new.entry.weight,
        )
        try:
            cluster.fleet.add_model(deployment)
            cluster.supervisor.add_model(name, new.entry.decode.engine.max_model_len)
            self._models.add(new.entry)
            await cluster.supervisor.router.add_model(deployment)
        except (CannotPlace, ValueError) as error:
            raise FleetError("invalid", "config", f"{name}: {error}") from None
        except TimeoutError:
            raise FleetError("unavailable", "config", f"{name}: the router did not add the model in time") from None
        except OSError as error:
            raise FleetError("unavailable", "config", f"{name}: {error}") from None
        self._services.start(name, new.content)

    async def _start_groups(self, new: NewModel) -> None:
        """Starts the groups of a new model. From now on they count as there."""
        supervisor, fleet = self._cluster.supervisor, self._cluster.fleet.of_model(new.entry.name)
        groups = [one for role, pool in new.config.pools() for one in fleet.make(role, pool.replicas, fleet.newest)]
        await supervisor.add(groups)

    async def until_served(self, name: str) -> None:
        """Returns when all groups of a model serve. Raises FleetError."""
        supervisor, fleet = self._cluster.supervisor, self._cluster.fleet.of_model(name)
        timeout_s = self._models.config.startup_timeout_s
        try:
            async with start_bound(timeout_s, lambda: supervisor.members):
                await asyncio.gather(*(supervisor.served(one.name) for one in fleet.state().members))
        except TimeoutError:
            late = [f"{one.name} is {one.state}" for one in fleet.state().members if one.state != "ready"]
            reason = f"{name}: not up after {timeout_s:g} s: {'; '.join(late)}"
            raise FleetError("unavailable", "config", reason) from None
        except StartFailed as failed:
            raise FleetError("unavailable", "config", f"{name} cannot be served: {failed}") from None

    async def _give_up(self, begun: Sequence[NewModel]) -> None:
        for model in begun:
            await self._end(model.entry.name, 0.0)

    async def remove(self, name: str, by: Author) -> None:
        """Drains a model and ends its workers. If the caller goes away, it is removed all the same. Raises
        FleetError."""
        fleet = self._cluster.fleet.of_model(name)
        model = self._state.of_model(name)
        if model.is_leaving:
            raise FleetError("conflict", "model", f"{name} is being removed already")
        if model.asked and by is not REPOSITORY:
            reason = f"{name} is served for a model of the repository, and is removed when that is unloaded"
            raise FleetError("conflict", "model", reason)
        if fleet.is_held:
            raise FleetError("conflict", "model", f"an update of {name} is under way")
        is_only = sum(not one.is_leaving for one in self._state.models) == 1
        if is_only and not self._models.config.repository.is_on:
            raise FleetError("conflict", "model", f"{name} is the only model; `slipstream down` ends the cluster")
        self._changes.note(by, "model", name, "", "removed", model=name)
        await asyncio.shield(self._begin_removal(name))

    def resume(self) -> None:
        """Goes on with what the previous driver had begun to remove."""
        for model in self._state.models:
            if model.is_leaving:
                self._begin_removal(model.model)
        self._has_resumed.set()

    def _begin_removal(self, name: str) -> asyncio.Task[None]:
        self._state.of_model(name).is_leaving = True
        self._state_file.write()
        self._console.event(f"model {name} is being removed")
        task = asyncio.create_task(self._end(name, self._models.config.drain_timeout_s), name=f"remove {name}")
        self._keep(task)
        self._removals[name] = task
        task.add_done_callback(lambda _: self._removals.pop(name, None))
        return task

    async def until_removed(self, name: str) -> None:
        """Returns when a model that is being removed is gone."""
        await self._has_resumed.wait()  # what the previous driver has begun is gone on with then
        if name in self._removals:
            await asyncio.wait([self._removals[name]])

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, name: str, deadline_s: float) -> None:
        """Ends a model, of which perhaps not all parts know."""
        supervisor = self._cluster.supervisor
        await supervisor.end_model(name, supervisor.router.remove_model(name, deadline_s))
        await self._services.stop(name)
        self._cluster.fleet.forget_model(name)
        self._models.remove(name)
        self._state.forget_model(name)
        self._state_file.write()
        self._console.event(f"model {name} has left the cluster")

    async def set_aliases(self, name: str, aliases: Sequence[str], by: Author) -> None:
        """Sets the further names of a model. Raises FleetError."""
        self._cluster.fleet.of_model(name)
        before = self._models.entry(name).aliases
        try:
            self._models.set_aliases(name, tuple(aliases))
        except ValueError as error:
            raise FleetError("invalid", "aliases", str(error)) from None
        await self._cluster.supervisor.router.set_aliases(name, aliases)
        self._state_file.write()
        self._changes.note(by, "model", name, ", ".join(before), f"aliases {', '.join(aliases)}", model=name)

    async def close(self) -> None:
        """Leaves what is under way to the next driver."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _warn(self, text: str) -> None:
        self._console.event(f"warning: {text}")


def _content(path: Path, config: ClusterConfig) -> ModelContent:
    try:
        return content_of(config)
    except (OSError, ValueError) as error:
        raise FleetError("invalid", "config", f"{path}: path: {error}") from None
