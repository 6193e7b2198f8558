"""What changes a cluster while it serves: the admin API, the planner and rolling updates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

from slipstream.cluster.access.admin_token import read_token
from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_server import AdminServer, operating
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.config.loading.config_warnings import Machine, too_little_memory
from slipstream.cluster.driver.driver_task import DriverTask
from slipstream.cluster.driver.managed_models import ManagedModels, managed_models
from slipstream.cluster.driver.urls import port_of, url_of
from slipstream.cluster.fleet.author import DRIVER, Author
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.history.key_changes import following_keys
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.models.supervised_cluster import SupervisedCluster
from slipstream.cluster.models.tensor_instance_counts import TensorInstanceCounts
from slipstream.cluster.models.tensor_versions import TensorVersions
from slipstream.cluster.planner.decision_log import DecisionLog, DecisionRecord
from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.planner.planner_loop import PlannerLoop, RunsOn
from slipstream.cluster.planner.pool_prices import PoolPrices
from slipstream.cluster.planner.shared.cluster_planner_loop import ClusterPlannerLoop
from slipstream.cluster.planner.shared.shared_loading import load_cluster_planner, load_shared_planner, shares_of
from slipstream.cluster.planner.shared.shared_loop import SharedPlannerLoop
from slipstream.cluster.ray.local_ray import ray_address
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.terminal.console import Console
from slipstream.router.process.addresses import Endpoint
from slipstream.router.process.background_task import in_background
from slipstream.router.protocol.messages import Role


class ControlServices:
    def __init__(self, task: DriverTask, state_file: StateFile, console: Console) -> None:
        self._task = task
        self._state_file = state_file
        self._console = console
        self._admin_server: AdminServer | None = None
        self._changes = ChangeLog.of_cluster(state_file.state.name, console.event)

    def _memory_warning(self, replicas: Mapping[str, Mapping[Role, int]]) -> str | None:
        config = self._task.config
        is_one_host = ray_address(config.ray) is None
        return too_little_memory(config, Machine.this(), replicas) if is_one_host else None

    def listen(self) -> None:
        """Opens the admin API's port. Raises OSError if it cannot listen, ValueError if its token or its certificate
        cannot be read."""
        config, before = self._task.config.admin_api, self._task.before
        if config.port is None:
            return
        # Operators who have the token, or wait at the port, do not notice that there is another driver.
        is_kept = before is not None and bool(before.operator_token) and config.token_file is None
        state = self._state_file.state
        state.operator_token = before.operator_token if before is not None and is_kept else read_token(config)
        port = config.port or (port_of(before.operator_url) if before is not None else None)
        self._admin_server = AdminServer(config, port or 0)
        scheme = "https" if config.tls.is_on else "http"
        state.operator_url = url_of(scheme, Endpoint(config.host, self._admin_server.port))
        state.operator_tls = config.tls.caller

    @asynccontextmanager
    async def managing(self, cluster: SupervisedCluster) -> AsyncIterator[ManagedModels]:
        """What changes the models, from before the cluster is up."""
        with closing(self._changes):
            async with managed_models(cluster, self._task, self._state_file, self._changes, self._console) as managed:
                yield managed

    @asynccontextmanager
    async def running(self, cluster: SupervisedCluster, managed: ManagedModels) -> AsyncIterator[None]:
        """Runs all other services while the context is open."""
        task, state, changes = self._task, self._state_file.state, self._changes
        config, router = task.config.planner, cluster.supervisor.router
        models, services, admin = managed.served, managed.services, managed.admin
        decisions = DecisionLog(config.log_decisions, self._note_decision) if config.enabled else None
        for name, content in cluster.contents.items():
            services.start(name, content)
        tokens_file = task.config.admin_api.tokens_file
        tokens = AdminTokens(state.operator_token, Path(tokens_file) if tokens_file is not None else None)
        tensors = TensorVersions(router, models, self._state_file, changes)
        instances = TensorInstanceCounts(router, models, self._state_file, changes)
        parts = DriverParts(
            cluster.fleet,
            state,
            router,
            tokens,
            decisions,
            services.updaters,
            cluster.files,
            changes,
            admin,
            tensors,
            instances,
            self._memory_warning,
        )
        async with AsyncExitStack() as stack:
            changes.note(DRIVER, "cluster", state.name, "", f"ready (Slipstream {state.slipstream})")
            stack.callback(changes.note, DRIVER, "cluster", state.name, "ready", "stopping")
            stack.push_async_callback(tensors.close)
            await stack.enter_async_context(following_keys(task.config.router.access.keys_file, changes))
            if self._admin_server is not None:
                await stack.enter_async_context(operating(self._admin_server, parts))
            if decisions is not None:
                planner_loop = self._planner_loop(cluster, models, instances, decisions)
                await stack.enter_async_context(in_background(planner_loop.run(), "planner"))
            admin.resume()
            yield

    def _planner_loop(
        self,
        cluster: SupervisedCluster,
        models: ServedModels,
        instances: TensorInstanceCounts,
        decisions: DecisionLog,
    ) -> RunsOn:
        """A cluster that began with `models` divides its budget among them, one with a repository among workers and
        instances. A planner of one's own decides about workers."""
        config, fleet, signals = models.config, cluster.fleet, cluster.supervisor.router.signals
        planner, say = config.planner, self._console.event
        if config.repository.is_on and planner.class_name is None:
            both = load_cluster_planner(config)
            return ClusterPlannerLoop(planner, both, fleet, signals, lambda: models.config, instances, decisions, say)
        if config.models:
            shared = load_shared_planner(planner, shares_of(config), config.budget)
            return SharedPlannerLoop(planner, shared, fleet, signals, lambda: shares_of(models.config), decisions, say)
        prices = PoolPrices(config.prefill.price_per_hour, config.decode.price_per_hour)
        (name,) = fleet.models
        alone = load_planner(planner, prices)
        return PlannerLoop(planner, alone, fleet.of_model(name), partial(signals, name), decisions, say)

    def _note_decision(self, record: DecisionRecord) -> None:
        decision = record.decision
        done = ", ".join(map(str, decision.actions))
        why = "; ".join([decision.why, *(f"not done: {text}" for text in record.failed)])
        self._changes.note(Author("planner", why), "planner", done, "", decision.size, model=record.model)
