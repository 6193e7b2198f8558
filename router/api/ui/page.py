"""Which routes the page has."""

from __future__ import annotations

from slipstream.router.api.exchange_context import ApiRoutes
from slipstream.router.api.ui.admin_calls import AdminCalls
from slipstream.router.api.ui.page_files import PageFiles
from slipstream.router.config.router_config import RouterConfig


def serve_page(config: RouterConfig, routes: ApiRoutes, *, calls_admin: bool) -> None:
    """Serves the page, unless it is turned off; with `calls_admin` also its calls of the admin API, if there is one."""
    ui = config.ui
    if not ui.enabled:
        return
    if calls_admin and ui.calls_admin:
        AdminCalls(ui.admin_url, ui.admin_tls).add_to(
            routes
        )  # before the files, whose paths have any name below `/ui/`
    PageFiles().add_to(routes)
