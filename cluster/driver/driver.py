"""The driver of a cluster: brings it up, from an empty Ray to the first token; watches it; and ends it in order."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from slipstream import __version__
from slipstream.cluster.admin_api.admin_server import AdminServer, operating
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.config.admin_token import read_token
from slipstream.cluster.config.served_config import as_plain
from slipstream.cluster.driver.driver_task import DriverTask
from slipstream.cluster.driver.status_reporter import StatusReporter
from slipstream.cluster.driver.stop_order import StopOrder, unless
from slipstream.cluster.driver.urls import port_of, url_of
from slipstream.cluster.fleet.update_plan import UpdateEvent
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.planner.planner_loop import PlannerLoop, planning
from slipstream.cluster.processes import process_tree
from slipstream.cluster.ray.bundles import CannotPlace, check_fits, pool_resources
from slipstream.cluster.ray.local_ray import LocalRay, RayFailed
from slipstream.cluster.ray.ray_session import RaySession, connected
from slipstream.cluster.repository.files_watch import FilesWatch, watching
from slipstream.cluster.repository.model_content import ModelContent, content_of, unused_name
from slipstream.cluster.state.router_probe import wait_until_ready, why_not_ready
from slipstream.cluster.state.run_state import ClusterPhase, ClusterState, StateFile
from slipstream.cluster.supervisor.cluster_fleet import ClusterFleet
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.members.router_member import RouterMember
from slipstream.cluster.supervisor.supervisor import StartFailed, Supervisor
from slipstream.cluster.terminal.console import Console
from slipstream.cluster.update.release import Release
from slipstream.cluster.update.updater import Updater
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.messages import Role


class Driver:
    """Runs one cluster in the calling thread, which must be the main thread, and reports at the terminal."""

    def __init__(self, task: DriverTask, log_dir: Path | None, console: Console) -> None:
        self._guardian = task.guardian
        self._config = task.config
        self._overrides = task.overrides
        self._before = task.before
        self._console = console
        self._timings = task.timings
        self._log_dir = log_dir
        self._operator_port: AdminServer | None = None
        self._content: Future[ModelContent] = Future()
        self._state = ClusterState(
            name=task.config.name,
            pid=task.guardian.pid,
            started=task.guardian.started,
            driver=os.getpid(),
            driver_started=process_tree.start_time(os.getpid()) or 0.0,
            config=str(task.config_path.resolve()),
            served=as_plain(task.config),
            model=task.config.model.name,
            log_dir=str(log_dir or ""),
            slipstream=__version__,
            guardian_slipstream=task.guardian.slipstream,
        )
        if task.before is not None:
            self._state.carry_on(task.before)
        self._state_file = StateFile(task.state_path, self._state, console.event)

    def run(self, where: LocalRay | str) -> int:
        """Serves until a signal, on a Ray of our own or at an address. Returns the exit code."""
        try:
            self._begin_operator()
        except (OSError, ValueError) as error:
            self._console.say(f"slipstream: operator: {error}")
            return 1
        self._state_file.write()
        # Large files take seconds when they are new; Ray starts meanwhile. A daemon: the end does not wait for it.
        threading.Thread(target=self._read_content, name="model-files", daemon=True).start()
        if isinstance(where, str):
            self._console.say(f"connecting to Ray at {where}")
        else:
            self._console.pending("starting Ray")
        own = where if isinstance(where, LocalRay) else None
        try:
            address = where.address() if isinstance(where, LocalRay) else where
            with connected(address, is_own=own is not None) as session:
                self._console.step("Ray runs" if own else f"connected to Ray at {address}")
                try:
                    return asyncio.run(self._serve(session, own))
                finally:
                    # What follows takes little, bounded time; another Ctrl-C could only leave something behind.
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except (RayFailed, CannotPlace, StartFailed) as error:
            self._console.say(f"slipstream: {error}")
            if self._log_dir is not None:
                self._console.say(f"the logs of all processes are in {self._log_dir}")
            return 1

    async def _serve(self, session: RaySession, own: LocalRay | None) -> int:
        stop = StopOrder()
        watch = StatusReporter(self._console, self._state_file, own, self._config.router.http.tls.is_on)
        with stop.signals(), self._guardian.watched(partial(self._on_guardian_gone, stop)):
            content = await self._content_unless(stop.given)
            if content is None:
                self._console.say("interrupted before it was up; everything is being stopped")
                return 130
            supervisor, fleet = self._supervised(session, watch, content)
            try:
                if not await unless(stop.given, self._bring_up(supervisor, fleet, watch)):
                    self._console.say("interrupted before it was up; everything is being stopped")
                    return 130
                async with self._operating(supervisor, fleet, watch, content):
                    await unless(stop.given, supervisor.unless_failed(asyncio.Event().wait()))
                if self._leaves_clients:
                    self._console.say("slipstream: the driver got a signal to end that the guardian did not send")
                    return 0
                self._phase("draining")
                grace_s = self._config.drain_grace_s if stop.has_grace else 0.0
                grace = f"new requests are served for {grace_s:g} s more, " if grace_s else ""
                self._console.say(
                    f"draining: {grace}running requests may finish, within {self._config.drain_timeout_s:g} s "
                    "(Ctrl-C again stops at once)"
                )
                if not await unless(stop.at_once, self._drain(supervisor, grace_s)):
                    self._console.say("stopping at once")
                return 0
            finally:
                self._phase("stopping")
                await supervisor.stop(leaves_clients=self._leaves_clients)

    async def _drain(self, supervisor: Supervisor, grace_s: float) -> None:
        if grace_s:
            await supervisor.router.leave(grace_s)
        await supervisor.router.drain(self._config.drain_timeout_s)

    @property
    def _leaves_clients(self) -> bool:
        """Whether the next driver's router goes on with the clients if this driver ends now."""
        is_kept = self._guardian.keeper is not None and not self._config.router.http.tls.is_on
        return is_kept and self._guardian.starts_another

    def _begin_operator(self) -> None:
        """Opens the admin API's port. Raises OSError if it cannot listen, ValueError if its token cannot be read."""
        config = self._config.operator
        if config.port is None:
            return
        before = self._before
        # Operators who have the token, or wait at the port, do not notice that there is another driver.
        is_kept = before is not None and bool(before.operator_token) and config.token_file is None
        self._state.operator_token = before.operator_token if before is not None and is_kept else read_token(config)
        port = config.port or (port_of(before.operator_url) if before is not None else None)
        self._operator_port = AdminServer(config, port or 0)
        self._state.operator_url = url_of("http", Endpoint(config.host, self._operator_port.port))

    @asynccontextmanager
    async def _operating(
        self, supervisor: Supervisor, fleet: ClusterFleet, watch: StatusReporter, content: ModelContent
    ) -> AsyncIterator[None]:
        """Runs the planner, the updater and the admin API while the cluster serves."""
        planner = self._config.planner
        decisions = DecisionLog(planner.log_decisions) if planner.enabled else None
        updater = self._updater(supervisor, fleet, watch, content)
        assert watch.files is not None
        token = self._state.operator_token
        router = supervisor.router
        parts = DriverParts(
            fleet, self._state, router.cluster_status, token, decisions, updater, router.signals_to_show, watch.files
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(updater.close)
            await stack.enter_async_context(watching(watch.files))
            if self._operator_port is not None:
                await stack.enter_async_context(operating(self._operator_port, parts))
            if decisions is not None:
                see, say = router.signals, self._console.event
                shell = PlannerLoop(planner, load_planner(planner), fleet, see, decisions, say)
                await stack.enter_async_context(planning(shell))
            yield

    def _updater(
        self, supervisor: Supervisor, fleet: ClusterFleet, watch: StatusReporter, content: ModelContent
    ) -> Updater:
        state = self._state

        def show(event: UpdateEvent, release: Release) -> None:
            self._console.event(f"update: {event.text}")
            state.config, state.served = release.path, as_plain(release.config)
            state.version, state.content = release.version, release.content.digest
            state.names = sorted(updater.names)
            state.update, state.update_phase = event.text, event.phase
            watch.wants(supervisor.expected)

        first = Release(state.version, self._config, state.config, content)
        earlier = UpdateEvent(0.0, state.update_phase, state.update) if state.update_phase is not None else None
        updater = Updater(first, fleet, supervisor.router.member, self._overrides.load, show, earlier, state.names)
        return updater

    def _supervised(
        self, session: RaySession, watch: StatusReporter, content: ModelContent
    ) -> tuple[Supervisor, ClusterFleet]:
        """The supervisor and the fleet of the deployment. Raises CannotPlace."""
        config = self._config
        pools = pool_resources(config, session.resources.get("GPU", 0.0))
        try:
            check_fits(pools, session.resources)
        except CannotPlace as too_small:
            if session.is_own:
                raise
            self._console.say(f"{too_small}; waiting for further nodes")
        self._name_version(content)
        token = secrets.token_hex(16)
        version, manifest = self._state.version, content.manifest
        deployment = Deployment(config, token, self._log_dir, session.may_span_nodes, version, manifest)
        router = RouterMember(deployment, session.node_id, self._guardian.keeper)
        if self._before is not None:
            router.stay_at(*(port_of(url) for url in (self._before.url, self._before.admin_url)))
        supervisor = Supervisor(config, router, watch)
        watch.fleet = fleet = ClusterFleet(supervisor, deployment, session)
        watch.files = FilesWatch(fleet.files, watch.files_changed)
        return supervisor, fleet

    def _read_content(self) -> None:
        try:
            self._content.set_result(content_of(self._config))
        except (OSError, ValueError) as error:
            self._content.set_exception(StartFailed(f"model.path: {error}"))

    async def _content_unless(self, stop: asyncio.Event) -> ModelContent | None:
        """What the model's files are; None if `stop` comes before they are read. Raises StartFailed."""
        if not self._content.done():
            self._console.pending("reading the model's files, to name its version")
        reading: asyncio.Future[ModelContent] = asyncio.wrap_future(self._content)
        return reading.result() if await unless(stop, reading) else None

    def _name_version(self, content: ModelContent) -> None:
        """What the previous driver served keeps its name, because answers continue only within a version. If the files
        have been replaced, no worker has the old ones any more, and the new ones are served under another name."""
        state = self._state
        if state.content == content.digest:
            return
        version = unused_name(content.name, state.names)
        if state.content:
            self._console.event(
                f"the files in {self._config.model.path} are not those of version {state.version}, which served "
                f"before; they are served as version {version}"
            )
        state.version, state.content = version, content.digest
        state.names.append(version)

    async def _bring_up(self, supervisor: Supervisor, fleet: ClusterFleet, watch: StatusReporter) -> None:
        """Starts everything and waits for the first token. Raises StartFailed."""
        try:
            async with asyncio.timeout(self._config.startup_timeout_s):
                await supervisor.start(
                    [
                        group
                        for role, replicas in self._replicas().items()
                        for group in fleet.make(role, replicas, fleet.newest)
                    ]
                )
                assert watch.http is not None
                self._console.pending("generating a first token")
                await supervisor.unless_failed(wait_until_ready(*watch.http))
        except TimeoutError:
            late = [f"{m.name} is {m.state} ({m.detail})" for m in supervisor.members if m.state != "ready"]
            if not late and watch.http is not None:
                late = [await why_not_ready(*watch.http) or "it just is"]
            raise StartFailed(f"not up after {self._config.startup_timeout_s:g} s: {'; '.join(late)}") from None
        except OSError as error:
            raise StartFailed(f"the router cannot be reached at {self._state.url}: {error}") from error
        supervisor.settle()
        has_decode = self._state.wanted["decode"] > 0
        self._console.step("a first token has been generated" if has_decode else "requests wait for a decode worker")
        watch.settled = True
        self._phase("ready")
        self._guardian.ready()
        if self._before is not None:
            self._console.say(f"Serves again at {self._state.url}")
            return
        if self._timings:
            self._show_timings()
        self._show_url()

    def _replicas(self) -> dict[Role, int]:
        """How many groups of each role to begin with: as many as the previous driver was to have, even none."""
        if self._before is not None and self._before.wanted:
            return self._before.wanted
        return {role: pool.replicas for role, pool in self._config.pools()}

    def _on_guardian_gone(self, stop: StopOrder) -> None:
        if not stop.given.is_set():
            self._console.say("slipstream: the process that was started (the guardian) is gone, so this ends, too")
            stop.given.set()

    def _show_url(self) -> None:
        url = self._state.url
        body = {
            "model": self._config.model.name,
            "messages": [{"role": "user", "content": "Write a function that reads a file."}],
            "max_tokens": 100,
            "temperature": 0.7,
            "stream": True,
        }
        self._console.say()
        self._console.say(f"Ready at {url} (Ctrl-C to stop). Try:")
        data = shlex.quote(json.dumps(body))
        key = " -H 'Authorization: Bearer KEY'" if self._config.router.access.keys_file is not None else ""
        self._console.say(f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {data}")
        self._console.say()

    def _show_timings(self) -> None:
        """Shows where the time of the start went."""
        self._console.say("Start, seconds since the command:")
        for text, at_s in self._console.stages:
            self._console.say(f"  {at_s:6.2f}  {text}")
        for member in self._state.members:
            for stage, took_s in member.startup_s:
                self._console.say(f"  {took_s:6.2f}  in {member.name}: {stage}")

    def _phase(self, phase: ClusterPhase) -> None:
        self._state.phase = phase
        self._state_file.write()
