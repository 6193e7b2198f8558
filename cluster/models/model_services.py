"""What changes or watches a single model while it serves: its updates, and the watch of its files."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.model_file import entry_for_update, is_entry
from slipstream.cluster.config.loading.overrides import Overrides
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.fleet.update_plan import ENDED, UpdateEvent
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.models.supervised_cluster import SupervisedCluster
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.repository.model_content import ModelContent
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.supervisor.model_router import ModelRouter
from slipstream.cluster.terminal.console import Console
from slipstream.cluster.update.folder_watch import FolderWatch
from slipstream.cluster.update.release import Release
from slipstream.cluster.update.updater import Updater
from slipstream.cluster.update.updaters import Updaters


class ModelServices:
    def __init__(
        self,
        cluster: SupervisedCluster,
        models: ServedModels,
        state: ClusterState,
        changes: ChangeLog,
        console: Console,
        overrides: Overrides,
    ) -> None:
        """`overrides` are those of the command line, which also apply to the files of updates. `downloads` fetches what
        a changed configuration names; it is to be abandoned before the end, because threads wait for it."""
        self._overrides = overrides
        self._cluster = cluster
        self._models = models
        self._state = state
        self._changes = changes
        self._console = console
        self.downloads = Downloads(console)
        self._update_phases: dict[str, str] = {}  # of the updates that are under way
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # which watch the files of a model
        self.updaters = Updaters()

    def start(self, name: str, content: ModelContent) -> None:
        """Begins to serve a model in the fleet; `content` is that of its files."""
        fleet, reporter = self._cluster.fleet.of_model(name), self._cluster.reporter
        self.updaters.add(name, self._updater(name, content))
        watch = self._cluster.files[name] = FilesWatch(fleet.files, partial(reporter.files_changed, name))
        self._tasks[name] = [asyncio.create_task(watch.run(), name=f"files-watch {name}")]
        config = self._models.config
        if config.of_model(name).model.watch:
            tried = self._state.of_model(name).tried
            folder_watch = FolderWatch(self.updaters.of(name), config.watch, tried, self._console.event)
            self._tasks[name].append(asyncio.create_task(folder_watch.run(), name=f"folder-watch {name}"))

    async def stop(self, name: str) -> None:
        """Ends them, if they have begun."""
        if name not in self._tasks:
            return
        await self.updaters.of(name).close()
        self.updaters.discard(name)
        self._cluster.files.pop(name, None)
        tasks = self._tasks.pop(name)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        for name in list(self._tasks):
            await self.stop(name)

    def _updater(self, name: str, content: ModelContent) -> Updater:
        state = self._state

        def show(event: UpdateEvent, release: Release) -> None:
            model = state.of_model(name)
            which = f" of {name}" if state.further else ""
            self._console.event(f"update{which}: {event.text}")
            self._note(name, event, updater)
            if model is not state or not state.further:
                model.config = release.path
            self._models.update(name, release.config)
            model.version, model.content = release.version, release.content.digest
            model.names = sorted(updater.names)
            model.update, model.update_phase = event.text, event.phase
            self._cluster.reporter.wants(self._cluster.supervisor.expected)

        model = state.of_model(name)
        first = Release(model.version, self._models.config.of_model(name), model.config, content)
        earlier = UpdateEvent(0.0, model.update_phase, model.update) if model.update_phase is not None else None
        router = ModelRouter(self._cluster.supervisor.router.member, name)
        fleet = self._cluster.fleet.of_model(name)
        updater = Updater(first, fleet, router, partial(self._load, name), show, earlier, model.names)
        return updater

    def _load(self, name: str, path: Path) -> ClusterConfig:
        """The configuration of the model alone, as a file has it: an entry for this model or the file of a whole
        cluster, of which, where there are several models, only the entry counts. Raises ConfigError."""
        if self._models.config.models or is_entry(path):
            return entry_for_update(path, name, self._models.config, self._warn, self.downloads)
        config = self._overrides.load(path, self._warn, self.downloads)
        try:
            return config.of_model(name) if config.models else config
        except KeyError:
            raise ConfigError([f"{path}: model {name!r} is not in it"]) from None

    def _warn(self, text: str) -> None:
        self._console.event(f"warning: {text}")

    def _note(self, name: str, event: UpdateEvent, updater: Updater) -> None:
        status = updater.status
        what = f"{status.old} -> {status.new}" if status is not None else ""
        has_reason = bool(event.by.reason)
        author = event.by if has_reason else event.by._replace(reason=event.text)
        subject = what or (event.text if has_reason else "")  # the text stands in one column
        before = self._update_phases.get(name, "")
        self._update_phases[name] = "" if event.phase in ENDED else event.phase
        self._changes.note(author, "update" if what else "config", subject, before, event.phase, model=name)
