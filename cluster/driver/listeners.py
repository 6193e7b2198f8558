"""Where the processes on the driver's machine are to listen, and whether they can."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.router.process.listening import bound_at, close_all, why_path_is_taken


class ListenAddress(NamedTuple):
    """One listening address; `port` 0: any free port."""

    section: str  # the section of the configuration that names it
    host: str
    port: int


def listeners(config: ClusterConfig) -> Iterator[ListenAddress]:
    """All listening addresses except those of workers."""
    router, admin_api = config.router, config.admin_api
    yield ListenAddress("router.http", router.http.host, router.http.port)
    yield ListenAddress("router", router.worker_host, router.worker_port)
    if router.admin.port is not None:
        yield ListenAddress("router.admin", router.admin.host, router.admin.port)
    repository = config.repository
    if repository.is_on:
        yield ListenAddress("repository", router.worker_host, repository.instance_port)
        if repository.grpc.port is not None:
            host = repository.grpc.host or router.http.host
            yield ListenAddress("repository.grpc", host, repository.grpc.port)
        if repository.metrics.port is not None:
            host = repository.metrics.host or router.http.host
            yield ListenAddress("repository.metrics", host, repository.metrics.port)
    if admin_api.port is not None:
        yield ListenAddress("admin_api", admin_api.host, admin_api.port)


def why_not_there(listener: ListenAddress) -> str | None:
    """Why this machine cannot listen there now, as one sentence that begins with the key; None if it can."""
    section, host, port = listener
    prefix = {"router": "worker_", "repository": "instance_"}.get(section, "")
    try:
        close_all(bound_at(host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            key = f"{section}.{prefix}port"
            return f"{key}: port {port} at {host} is in use by another program; choose another one, or 0 for any"
        if error.errno == errno.EACCES:
            return f"{section}.{prefix}port: port {port} at {host} cannot be used: {error.strerror}"
        return f"{section}.{prefix}host: nothing can listen at {host} on this machine: {error.strerror or error}"
    return None


def why_no_unix_socket(config: ClusterConfig) -> str | None:
    """Why `router.http.unix_socket` cannot be made now, as one sentence that begins with the key; None if it can."""
    path = config.router.http.unix_socket
    if path is None:
        return None
    folder = Path(path).parent
    if not folder.is_dir():
        why: str | None = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"nothing can be created in the folder {folder}"
    else:
        try:
            why = why_path_is_taken(path)
        except OSError as error:
            why = error.strerror or str(error)
    return None if why is None else f"router.http.unix_socket: nothing can listen at {path}: {why}"
