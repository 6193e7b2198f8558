"""Serves the admin API with uvicorn. It is imported late and in a thread, because it imports FastAPI."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn

from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.history_routes import history_routes
from slipstream.cluster.admin_api.model_routes import model_routes
from slipstream.cluster.admin_api.planner_routes import planner_routes
from slipstream.cluster.admin_api.update_routes import update_routes
from slipstream.cluster.repository.files_metrics import FilesPage
from slipstream.router.observability.certificate_metrics import CertificatePage
from slipstream.router.tls.server_tls import ServerTls

GOODBYE_S = 1


class UvicornServer(uvicorn.Server):
    """A uvicorn server that does not handle signals, as the driver does that."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def web_server(parts: DriverParts, tls: ServerTls | None = None) -> UvicornServer:
    """A server with the routes of everything that operators can ask of this driver, perhaps over TLS."""
    pages = [FilesPage(parts.files), CertificatePage({"admin": tls})]
    routers = [planner_routes(parts.decisions, parts.fleet, pages)]
    routers.append(history_routes(parts.changes))
    if parts.models is not None:
        routers.append(model_routes(parts.models))
    if parts.updaters is not None:
        routers.append(update_routes(parts.updaters, parts.tensors))
    app = build_app(parts, routers)
    config = uvicorn.Config(
        app,
        loop="none",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_S,
    )
    config.load()
    if tls is not None:
        config.ssl = tls.context  # uvicorn would read the files once; this context takes up renewed ones
    return UvicornServer(config)
