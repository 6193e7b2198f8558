"""The certificates that a deployment's file names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.settings_file import Key
from slipstream.router.config.router_config import TlsConfig
from slipstream.router.http.tls import http_tls
from slipstream.router.tls.admin_tls import AdminTlsConfig
from slipstream.router.tls.client_tls import ClientTlsConfig
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.router.tls.tls_files import TlsFileError

T = TypeVar("T", TlsConfig, LinkTlsConfig, ClientTlsConfig, AdminTlsConfig)


def with_absolute_certificates(config: ClusterConfig, folder: Path) -> ClusterConfig:
    """They are named relative to the configuration's folder, not to where a process runs."""
    router = config.router
    return dataclasses.replace(
        config,
        router=dataclasses.replace(
            router,
            http=dataclasses.replace(router.http, tls=_absolute(router.http.tls, folder)),
            worker_tls=_absolute(router.worker_tls, folder),
            ui=dataclasses.replace(router.ui, admin_tls=_absolute(router.ui.admin_tls, folder)),
        ),
        admin_api=dataclasses.replace(config.admin_api, tls=_absolute(config.admin_api.tls, folder)),
    )


def tls_problems(config: ClusterConfig) -> Iterator[tuple[Key, str]]:
    """Which of the files cannot be used, by their keys, and why."""
    router, admin_api = config.router, config.admin_api
    checks: list[tuple[Key, bool, Callable[[], object]]] = [
        (("router", "http", "tls"), router.http.tls.is_on, lambda: http_tls(router.http.tls)),
        (("router", "worker_tls"), router.worker_tls.is_on, lambda: router.worker_tls.server_tls("certificate")),
        (("router", "ui", "admin_tls"), router.ui.admin_url.startswith("https:"), router.ui.admin_tls.context),
        (("admin_api", "tls"), admin_api.tls.is_on, admin_api.tls.server_tls),
        (("admin_api", "tls"), admin_api.tls.is_on, admin_api.tls.check_caller),
    ]
    for section, is_on, check in checks:
        try:
            if is_on:
                check()
        except TlsFileError as error:
            yield (*section, error.key), error.reason


def _absolute(tls: T, folder: Path) -> T:
    names = [field.name for field in dataclasses.fields(tls) if field.name.endswith("_file")]
    given = {name: getattr(tls, name) for name in names if getattr(tls, name) is not None}
    return dataclasses.replace(
        tls, **{name: os.path.normpath(folder / os.path.expanduser(file)) for name, file in given.items()}
    )
