"""What changes the models of a running cluster, made once and shared by all that do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from slipstream.cluster.driver.driver_task import DriverTask
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.model_admin import ModelAdmin
from slipstream.cluster.models.model_services import ModelServices
from slipstream.cluster.models.repository_pools import RepositoryPools
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.models.supervised_cluster import SupervisedCluster
from slipstream.cluster.models.wanted_pools import WantedPools
from slipstream.cluster.state.host_folders import cache_folder
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.terminal.console import Console
from slipstream.router.process.background_task import in_background


@dataclass(frozen=True, slots=True)
class ManagedModels:
    """`served` is the configuration as it is now, `services` are what watches and updates each model, and `admin` adds
    and removes them."""

    served: ServedModels
    services: ModelServices
    admin: ModelAdmin


@asynccontextmanager
async def managed_models(
    cluster: SupervisedCluster, task: DriverTask, state_file: StateFile, changes: ChangeLog, console: Console
) -> AsyncIterator[ManagedModels]:
    """While the context is open, also while the cluster comes up, the language models that a repository names get their
    pools."""
    served = ServedModels(task.config, state_file.state)
    services = ModelServices(cluster, served, state_file.state, changes, console, task.overrides)
    admin = ModelAdmin(cluster, served, services, state_file, changes, console)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(services.close)
        stack.push_async_callback(admin.close)
        if task.config.repository.is_on:
            folder = cache_folder() / "chosen"
            pools = WantedPools(cluster, served, services, admin, state_file, folder)
            repository_pools = RepositoryPools(cluster.supervisor.router, pools)
            await stack.enter_async_context(in_background(repository_pools.run(), "repository-pools"))
        stack.callback(services.downloads.abandon)
        yield ManagedModels(served, services, admin)
