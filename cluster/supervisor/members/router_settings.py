"""The settings that the next incarnation of the router starts with."""

from __future__ import annotations

import dataclasses
import errno

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.state.host_folders import store_folder
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.process.addresses import Addresses, RepositoryAddresses
from slipstream.router.tls.client_tls import ClientTlsConfig

MAX_PORT_TRIES = 5  # because the last incarnation may still hold its ports for a moment


class RouterSettings:
    """Those of the cluster, and what the incarnations before have settled: a port that one of them has chosen is that
    of the next one, so that workers and clients find it."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster = cluster
        self.config: RouterConfig = with_store(cluster.router, cluster.name)
        self.repository: RepositoryConfig = with_downloads(cluster.repository, cluster.model_cache)
        self._num_ports_taken = 0  # how many times in a row

    def show_admin_api(self, url: str, tls: ClientTlsConfig) -> None:
        """The page for people calls the admin API there, unless the configuration names another; "": there is none."""
        if not self.config.ui.admin_url:
            ui = dataclasses.replace(self.config.ui, admin_url=url, admin_tls=tls)
            self.config = dataclasses.replace(self.config, ui=ui)

    def tolerate_failed_models(self) -> None:
        """Models of the repository that cannot be loaded do not end later incarnations."""
        self.repository = dataclasses.replace(self.repository, exit_on_error=False)

    def divide_tensor_requests(self, model: str, config: TensorVersionsConfig) -> None:
        """How the requests to a model of the repository are divided between its versions."""
        versions = {**self.repository.versions, model: config}
        self.repository = dataclasses.replace(self.repository, versions=versions)

    def set_instance_counts(self, model: str, config: InstanceCountsConfig) -> None:
        """How many instances a model of the repository has."""
        instances = {**self.repository.instances, model: config}
        self.repository = dataclasses.replace(self.repository, instances=instances)

    def stay_at(self, http_port: int | None, admin_port: int | None) -> None:
        """The ports that clients know; None: the port is not known."""
        http, admin = self.config.http, self.config.admin
        if http_port is not None:
            http = dataclasses.replace(http, port=http_port)
        if admin_port is not None and admin.port is not None:
            admin = dataclasses.replace(admin, port=admin_port)
        self.config = dataclasses.replace(self.config, http=http, admin=admin)

    def stay_at_for_tensors(self, grpc_port: int | None, metrics_port: int | None) -> None:
        """The ports of the repository that clients know; None: the port is not known."""
        grpc, metrics = self.repository.grpc, self.repository.metrics
        if grpc_port is not None and grpc.port is not None:
            grpc = dataclasses.replace(grpc, port=grpc_port)
        if metrics_port is not None and metrics.port is not None:
            metrics = dataclasses.replace(metrics, port=metrics_port)
        self.repository = dataclasses.replace(self.repository, grpc=grpc, metrics=metrics)

    def listening(self, at: Addresses) -> None:
        """Keeps the ports at which an incarnation listens."""
        self._num_ports_taken = 0
        self.stay_at(at.http.port, at.admin.port if at.admin is not None else None)
        self.config = dataclasses.replace(self.config, worker_port=at.workers.port)
        if at.repository is not None:
            self._listening_for_tensors(at.repository)

    def _listening_for_tensors(self, at: RepositoryAddresses) -> None:
        self.stay_at_for_tensors(
            at.grpc.port if at.grpc is not None else None, at.metrics.port if at.metrics is not None else None
        )
        self.repository = dataclasses.replace(self.repository, instance_port=at.instances.port)

    def failed(self, cause: object) -> None:
        """Counts the starts in a row that failed because a port was taken. If a port that was chosen earlier belongs to
        another program by now, the configured ports are tried again in the end."""
        if not (isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE):
            return
        self._num_ports_taken += 1
        if self._num_ports_taken == MAX_PORT_TRIES:
            self._num_ports_taken = 0
            self._choose_ports_anew()

    def _choose_ports_anew(self) -> None:
        asked, ports = self._cluster.router, self._cluster.repository
        http = dataclasses.replace(self.config.http, port=asked.http.port)
        admin = dataclasses.replace(self.config.admin, port=asked.admin.port)
        self.config = dataclasses.replace(self.config, http=http, admin=admin, worker_port=asked.worker_port)
        self.repository = dataclasses.replace(
            self.repository, grpc=ports.grpc, metrics=ports.metrics, instance_port=ports.instance_port
        )


def with_store(config: RouterConfig, name: str) -> RouterConfig:
    """The settings of the router of the cluster with this name: its store is in the cluster's folder by default."""
    folder = store_folder(name)
    if config.store.directory is not None or folder is None:
        return config
    return dataclasses.replace(config, store=dataclasses.replace(config.store, directory=str(folder)))


def with_downloads(config: RepositoryConfig, model_cache: ModelCacheConfig) -> RepositoryConfig:
    """The settings of a repository, with those of downloads that only the cluster's models have."""
    return dataclasses.replace(
        config,
        download_folder=config.download_folder or model_cache.path,
        download_max_gib=config.download_max_gib or model_cache.max_gib,
    )
