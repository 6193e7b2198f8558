"""The driver of a cluster: brings it up, from an empty Ray to the first token; watches it; and ends it in order."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from slipstream import __version__
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.served_config import as_plain
from slipstream.cluster.driver.control_services import ControlServices
from slipstream.cluster.driver.driver_task import DriverTask
from slipstream.cluster.driver.managed_models import ManagedModels
from slipstream.cluster.driver.served_versions import ServedVersions
from slipstream.cluster.driver.start_report import first_request, timings
from slipstream.cluster.driver.status_reporter import StatusReporter
from slipstream.cluster.driver.stop_order import StopOrder, unless
from slipstream.cluster.driver.urls import port_of
from slipstream.cluster.models.supervised_cluster import SupervisedCluster
from slipstream.cluster.processes import process_tree
from slipstream.cluster.processes.guardian_link import INTERRUPTED
from slipstream.cluster.ray.bundles import CannotPlace, all_pools, check_fits, check_one_host
from slipstream.cluster.ray.local_ray import LocalRay, RayFailed
from slipstream.cluster.ray.ray_session import RaySession, connected
from slipstream.cluster.repository.model_content import ModelContent
from slipstream.cluster.state.cluster_state import ClusterPhase, ClusterState
from slipstream.cluster.state.cluster_status import router_status
from slipstream.cluster.state.host_folders import instances_path
from slipstream.cluster.state.model_state import ModelState
from slipstream.cluster.state.repository_lines import start_lines
from slipstream.cluster.state.router_probe import wait_until_ready, why_not_ready
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.supervisor.cluster_fleet import ClusterFleet
from slipstream.cluster.supervisor.instance_host_nodes import instance_hosts
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.members.members import Group
from slipstream.cluster.supervisor.members.router_member import RouterMember
from slipstream.cluster.supervisor.start_bound import start_bound
from slipstream.cluster.supervisor.supervisor import StartFailed, Supervisor
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_repository.explicit_loads import ExplicitLoads
from slipstream.router.protocol.messages import Role
from slipstream.router.status.repository_status import LOADING

REASON_S = 2.0  # in which the supervisor learns why a router is gone


class Driver:
    """Runs one cluster in the calling thread, which must be the main thread, and reports at the terminal."""

    def __init__(self, task: DriverTask, log_dir: Path | None, console: Console) -> None:
        self._task = task
        self._config = task.config
        self._guardian = task.guardian
        self._before = task.before
        self._console = console
        self._log_dir = log_dir
        self._unready = ""  # why the router was not ready when it was last asked
        names = [entry.name for entry in task.config.entries()]
        self._state = ClusterState(
            name=task.config.name,
            pid=task.guardian.pid,
            started=task.guardian.started,
            driver=os.getpid(),
            driver_started=process_tree.start_time(os.getpid()) or 0.0,
            config=str(task.config_path.resolve()),
            served=as_plain(task.config),
            model=names[0] if names else "",
            log_dir=str(log_dir or ""),
            slipstream=__version__,
            guardian_slipstream=task.guardian.slipstream,
            further=[ModelState(name, str(task.config_path.resolve())) for name in names[1:]],
        )
        if task.before is not None:
            self._state.carry_on(task.before)
        self._state_file = StateFile(task.state_path, self._state, console.event)
        self._versions = ServedVersions(task.config, self._state, console)
        self._services = ControlServices(task, self._state_file, console)

    def run(self, where: LocalRay | str) -> int:
        """Serves until a signal, on a Ray of our own or at an address. Returns the exit code."""
        try:
            self._services.listen()
        except (OSError, ValueError) as error:
            self._console.say(f"slipstream: admin API: {error}")
            return 1
        self._state_file.write()
        self._versions.start_reading()  # Ray starts meanwhile
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
        with stop.signals(), self._guardian.watched(partial(self._on_guardian_gone, stop)):
            contents = await self._versions.contents_unless(stop.given)
            if contents is None:
                return self._interrupted()
            cluster = self._supervised(session, own, contents)
            try:
                async with self._services.managing(cluster) as managed:
                    if not await unless(stop.given, self._bring_up(cluster, managed)):
                        return self._interrupted()
                    async with self._services.running(cluster, managed):
                        await unless(stop.given, cluster.supervisor.unless_failed(asyncio.Event().wait()))
                if self._leaves_clients:
                    self._console.say("slipstream: the driver got a signal to end that the guardian did not send")
                    return 0
                await self._drain(cluster.supervisor, stop)
                ExplicitLoads.beside(instances_path(self._config.name)).forget()
                return 0
            finally:
                self._phase("stopping")
                await cluster.supervisor.stop(leaves_clients=self._leaves_clients)

    def _supervised(
        self, session: RaySession, own: LocalRay | None, contents: dict[str, ModelContent]
    ) -> SupervisedCluster:
        """The cluster, of which nothing runs so far. Raises CannotPlace."""
        config = self._config
        try:
            pools = all_pools(config, session.resources.get("GPU", 0.0))
            if session.is_own:
                check_one_host(pools)
            check_fits(pools, session.resources)
        except CannotPlace as too_small:
            if session.is_own:
                raise
            self._console.say(f"{too_small}; waiting for further nodes")
        self._versions.name(contents)
        token = secrets.token_hex(16)
        deployments = [
            Deployment(
                alone,
                token,
                self._log_dir,
                session.may_span_nodes,
                self._state.of_model(alone.model.name).version,
                contents[alone.model.name].manifest,
                entry.weight,
            )
            for entry, alone in zip(config.entries(), config.each(), strict=True)
        ]
        common = Deployment(config, token, self._log_dir, session.may_span_nodes)
        router = RouterMember(deployments or [common], session.node_id, self._guardian.holder)
        router.settings.show_admin_api(self._state.operator_url, self._state.operator_tls)
        if self._before is None:
            ExplicitLoads.beside(instances_path(config.name)).forget()
        if (before := self._before) is not None:
            router.settings.stay_at(port_of(before.url), port_of(before.admin_url))
            router.settings.stay_at_for_tensors(port_of(before.grpc_url), port_of(before.tensor_metrics_url))
            router.settings.tolerate_failed_models()
        reporter = StatusReporter(self._console, self._state_file, own, config.router.http.tls.is_on)
        supervisor = Supervisor(config, router, reporter, instance_hosts(common, router))
        reporter.fleet = fleet = ClusterFleet(supervisor, deployments, session, config.budget, config.num_ranks)
        return SupervisedCluster(supervisor, fleet, reporter, reporter.files, contents, (deployments or [common])[0])

    async def _bring_up(self, cluster: SupervisedCluster, managed: ManagedModels) -> None:
        """Starts everything and waits for the first token. Raises StartFailed."""
        supervisor, fleet, reporter = cluster.supervisor, cluster.fleet, cluster.reporter
        groups = list(self._first_groups(fleet))
        try:
            timeout_s, is_loading = self._config.startup_timeout_s, lambda: LOADING in self._unready
            async with start_bound(timeout_s, lambda: supervisor.members, is_loading):
                await supervisor.start(groups, has_served=self._before is not None)
                assert reporter.http is not None
                self._console.pending("generating a first token" if self._state.models else "loading the models")
                await supervisor.unless_failed(self._until_ready(reporter.http))
        except TimeoutError:
            late = [f"{m.name} is {m.state} ({m.detail})" for m in supervisor.members if m.state != "ready"]
            if not late and reporter.http is not None:
                late = [await why_not_ready(*reporter.http) or "it just is"]
            raise StartFailed(f"not up after {self._config.startup_timeout_s:g} s: {'; '.join(late)}") from None
        except OSError as error:
            raise StartFailed(f"the router cannot be reached at {self._state.url}: {error}") from error
        supervisor.settle()
        models = [self._state.of_model(entry.name) for entry in self._config.entries()]
        cold = [model.model for model in models if not model.wanted["decode"]]
        if self._config.repository.is_on:
            await self._report_loads()
        if models and len(cold) < len(models):
            self._console.step("a first token has been generated")
        if cold:
            which = f" of {', '.join(cold)}" if self._state.further else ""
            self._console.step(f"requests{which} wait for a decode worker")
        reporter.settled = True
        self._phase("ready")
        self._guardian.ready()
        self._report_start(managed.served.config)

    async def _until_ready(self, http: tuple[str, int, bool]) -> None:
        """Raises OSError if the router cannot be reached, but not before the supervisor can have learned why."""
        try:
            await wait_until_ready(*http, self._note_unready)
        except OSError:
            await asyncio.sleep(REASON_S)
            raise

    async def _report_loads(self) -> None:
        """Says what came of the repository's models."""
        status = await asyncio.to_thread(router_status, self._state.ask_url) or {}  # which may want a key
        first, *others = start_lines(status.get("repository", {"models": []}))
        self._console.step(first)
        for line in others:
            self._console.say(line)

    def _note_unready(self, reason: str) -> None:
        self._unready = reason

    def _first_groups(self, fleet: ClusterFleet) -> Iterator[Group]:
        """The groups to begin with: of each model as many as the previous driver was to have, even none."""
        taken: set[str] = set()
        for alone in self._config.each():
            of_model = fleet.of_model(alone.model.name)
            for role, count in self._replicas(alone).items():
                for group in of_model.make(role, count, of_model.newest, taken):
                    taken.add(group.name)
                    yield group

    def _replicas(self, alone: ClusterConfig) -> dict[Role, int]:
        """How many groups of each role a model is to begin with."""
        wanted = self._state.of_model(alone.model.name).wanted
        return {role: wanted.get(role, pool.replicas) for role, pool in alone.pools()}

    def _report_start(self, served: ClusterConfig) -> None:
        if self._before is not None:
            self._console.say(f"Serves again at {self._state.url}")
            return
        for line in timings(self._console.stages, self._state.members) if self._task.timings else ():
            self._console.say(line)
        for line in first_request(served, self._state):
            self._console.say(line)

    async def _drain(self, supervisor: Supervisor, stop: StopOrder) -> None:
        self._phase("draining")
        grace_s, timeout_s = self._config.drain_grace_s if stop.has_grace else 0.0, self._config.drain_timeout_s
        grace = f"new requests are served for {grace_s:g} s more, " if grace_s else ""
        self._console.say(
            f"draining: {grace}running requests may finish, within {timeout_s:g} s (Ctrl-C again stops at once)"
        )

        async def drain() -> None:
            if grace_s:
                await supervisor.router.leave(grace_s)
            await supervisor.router.drain(timeout_s)

        if not await unless(stop.at_once, drain()):
            self._console.say("stopping at once")

    @property
    def _leaves_clients(self) -> bool:
        """Whether the next driver's router goes on with the clients if this driver ends now."""
        is_kept = self._guardian.holder is not None and not self._config.router.http.tls.is_on
        return is_kept and self._guardian.starts_another

    def _on_guardian_gone(self, stop: StopOrder) -> None:
        if not stop.given.is_set():
            self._console.say("slipstream: the process that was started (the guardian) is gone, so this ends, too")
            stop.given.set()

    def _interrupted(self) -> int:
        self._console.say("interrupted before it was up; everything is being stopped")
        return INTERRUPTED

    def _phase(self, phase: ClusterPhase) -> None:
        self._state.phase = phase
        self._state_file.write()
