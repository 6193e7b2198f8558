"""What changes a cluster while it serves: the admin API, the planner and rolling updates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from slipstream.cluster.access.admin_token import read_token
from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_server import AdminServer, operating
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.config.served_config import as_plain
from slipstream.cluster.driver.driver_task import DriverTask
from slipstream.cluster.driver.supervised_cluster import SupervisedCluster
from slipstream.cluster.driver.urls import port_of, url_of
from slipstream.cluster.fleet.author import DRIVER, Author
from slipstream.cluster.fleet.update_plan import ENDED, UpdateEvent
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.history.key_changes import following_keys
from slipstream.cluster.planner.decision_log import DecisionLog, DecisionRecord
from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.planner.planner_loop import PlannerLoop, planning
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.repository.files_watch import watching
from slipstream.cluster.state.run_state import ClusterState
from slipstream.cluster.terminal.console import Console
from slipstream.cluster.update.folder_watch import FolderWatch, watching_folder
from slipstream.cluster.update.release import Release
from slipstream.cluster.update.updater import Updater
from slipstream.cluster.update.updaters import Updaters
from slipstream.router.process.addresses import Endpoint


class ControlServices:
    def __init__(self, task: DriverTask, state: ClusterState, console: Console) -> None:
        self._task = task
        self._state = state
        self._console = console
        self._admin_server: AdminServer | None = None
        self._changes = ChangeLog.of_cluster(state.name, console.event)
        self._update_phase = ""  # of the update that is under way

    def listen(self) -> None:
        """Opens the admin API's port. Raises OSError if it cannot listen, ValueError if its token cannot be read."""
        config, before = self._task.config.admin_api, self._task.before
        if config.port is None:
            return
        # Operators who have the token, or wait at the port, do not notice that there is another driver.
        is_kept = before is not None and bool(before.operator_token) and config.token_file is None
        self._state.operator_token = before.operator_token if before is not None and is_kept else read_token(config)
        port = config.port or (port_of(before.operator_url) if before is not None else None)
        self._admin_server = AdminServer(config, port or 0)
        self._state.operator_url = url_of("http", Endpoint(config.host, self._admin_server.port))

    @asynccontextmanager
    async def running(self, cluster: SupervisedCluster) -> AsyncIterator[None]:
        """Runs all services while the context is open."""
        config, router = self._task.config.planner, cluster.supervisor.router
        decisions = DecisionLog(config.log_decisions, self._note_decision) if config.enabled else None
        updater = self._updater(cluster)
        token = self._state.operator_token
        updaters = Updaters({self._task.config.model.name: updater})
        tokens_file = self._task.config.admin_api.tokens_file
        tokens = AdminTokens(token, Path(tokens_file) if tokens_file is not None else None)
        changes = self._changes
        parts = DriverParts(cluster.fleet, self._state, router, tokens, decisions, updaters, cluster.files, changes)
        async with AsyncExitStack() as stack:
            stack.callback(changes.close)
            changes.note(DRIVER, "cluster", self._state.name, "", f"ready (Slipstream {self._state.slipstream})")
            stack.callback(changes.note, DRIVER, "cluster", self._state.name, "ready", "stopping")
            stack.push_async_callback(updaters.close)
            await stack.enter_async_context(watching(cluster.files))
            await stack.enter_async_context(watching_folder(self._folder_watch(updater)))
            await stack.enter_async_context(following_keys(self._task.config.router.access.keys_file, changes))
            if self._admin_server is not None:
                await stack.enter_async_context(operating(self._admin_server, parts))
            if decisions is not None:
                planner, say = load_planner(config), self._console.event
                loop = PlannerLoop(config, planner, cluster.fleet, router.signals, decisions, say)
                await stack.enter_async_context(planning(loop))
            yield

    def _folder_watch(self, updater: Updater) -> FolderWatch | None:
        config = self._task.config
        if not config.model.watch:
            return None
        return FolderWatch(updater, config.watch, self._state.tried, self._console.event)

    def _note_decision(self, record: DecisionRecord) -> None:
        decision = record.decision
        done = ", ".join(map(str, decision.actions))
        why = "; ".join([decision.why, *(f"not done: {text}" for text in record.failed)])
        new = f"{decision.num_prefill}P{decision.num_decode}D"
        self._changes.note(Author("planner", why), "planner", done, "", new)

    def _note_update(self, event: UpdateEvent, updater: Updater) -> None:
        status = updater.status
        what = f"{status.old} -> {status.new}" if status is not None else ""
        author = event.by if event.by.reason else event.by._replace(reason=event.text)
        before, self._update_phase = self._update_phase, "" if event.phase in ENDED else event.phase
        model = self._task.config.model.name
        self._changes.note(author, "update" if what else "config", what or event.text, before, event.phase, model=model)

    def _updater(self, cluster: SupervisedCluster) -> Updater:
        state = self._state

        def show(event: UpdateEvent, release: Release) -> None:
            self._console.event(f"update: {event.text}")
            self._note_update(event, updater)
            state.config, state.served = release.path, as_plain(release.config)
            state.version, state.content = release.version, release.content.digest
            state.names = sorted(updater.names)
            state.update, state.update_phase = event.text, event.phase
            cluster.reporter.wants(cluster.supervisor.expected)

        def warn(text: str) -> None:
            self._console.event(f"warning: {text}")

        first = Release(state.version, self._task.config, state.config, cluster.content)
        earlier = UpdateEvent(0.0, state.update_phase, state.update) if state.update_phase is not None else None
        load = partial(self._task.overrides.load, warn=warn, files=Downloads(self._console))
        router = cluster.supervisor.router.member
        updater = Updater(first, cluster.fleet, router, load, show, earlier, state.names)
        return updater
