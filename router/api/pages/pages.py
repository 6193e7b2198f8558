"""The pages for people: `/`, `/docs` and `/openapi.json`. They need no key, and nothing from another host.

Links are relative, so that they work under any path prefix.
"""

from __future__ import annotations

import asyncio
import html
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from slipstream import __version__
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.pages.openapi import document
from slipstream.router.api.ui.built_page import is_built
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

HTML = "text/html; charset=utf-8"
ASSETS = {"/docs/swagger-ui.css": "text/css; charset=utf-8", "/docs/swagger-ui-bundle.js": "text/javascript"}
ASSETS_PACKAGE = "fastapi_offline"  # the admin API's; only its files are wanted here
PAGE_PATHS = frozenset({"/", "/docs", "/openapi.json", *ASSETS})
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'"
)
PAGE_HEADERS = (("content-security-policy", POLICY), ("x-content-type-options", "nosniff"))
VARY = (("vary", "accept"),)
WORDS = {
    "page": "a page to talk to the models and to watch the cluster",
    "docs": "the API",
    "openapi": "the same for programs",
    "models": "what is served",
    "ready": "whether requests are served now",
    "metrics": "for Prometheus",
    "tensors": "tensor models, by KServe v2",
}
HOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Slipstream</title>
<style>
body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}
</style>
<h1>Slipstream</h1>
<p>{about}
<ul>
{links}
</ul>
"""
DOCS = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Slipstream: API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "openapi.json", dom_id: "#page"})</script>
"""


class InfoPages:
    """`routes` are what is described, including what is added later. With keys, the pages name neither
    the models nor the version of this software. `open_paths` need no key. Tensor models make it `has_repository`."""

    def __init__(self, catalog: Catalog, routes: ApiRoutes, *, has_keys: bool, open_paths: frozenset[str]) -> None:
        self._catalog = catalog
        self._routes = routes
        self._has_keys = has_keys
        self._open_paths = open_paths
        self.has_repository = False
        self._document = b""
        self._documented: tuple[str, ...] = ()  # the models that are named in it

    def add_to(self, routes: ApiRoutes, path_prefix: str) -> None:
        """Register the pages."""
        routes.add("GET", "/", self.home)
        routes.add("GET", "/docs", self.docs)
        routes.add("GET", "/openapi.json", self.openapi)
        for path in ASSETS:
            routes.add("GET", path, self.asset, is_described=False)
        if path_prefix:
            routes.add("GET", path_prefix, self.to_folder, is_described=False)

    async def home(self, request: Request, exchange: ApiExchange) -> None:
        """What this is and where to find what, for browsers and, as JSON, for programs."""
        links = {"page": "ui/"} if self._routes.has("/ui") and is_built() else {}
        links |= {"docs": "docs", "openapi": "openapi.json", "models": "v1/models", "ready": "health/ready"}
        if self._routes.has("/metrics"):
            links["metrics"] = "metrics"
        if self.has_repository:
            links["tensors"] = "v2"
        if b"text/html" not in request.headers.get(b"accept", b""):
            details = {} if self._has_keys else {"version": __version__} | self._models()
            exchange.respond(200, orjson.dumps({"name": "slipstream", **details, "links": links}), headers=VARY)
            return
        about = "This server answers at <code>v1/chat/completions</code> and <code>v1/completions</code>"
        if self.has_repository and not len(self._catalog):
            about = "This server answers at <code>v2/models</code>"
        if not self._has_keys:
            about = f"Version {html.escape(__version__)}{self._named_models()}. {about}"
        items = "\n".join(f'<li><a href="{link}">{link}</a> {WORDS[name]}' for name, link in links.items())
        exchange.respond(200, HOME.format(about=f"{about}.", links=items).encode(), HTML, (*PAGE_HEADERS, *VARY))

    def _named_models(self) -> str:
        """The names of all models, to follow a comma; "" if there are none."""
        names = ", ".join(f"<code>{html.escape(entry.model.name)}</code>" for entry in self._catalog)
        if not names:
            return ""
        return f", {'model' if self._catalog.only is not None else 'models'} {names}"

    def _models(self) -> dict[str, Any]:
        only = self._catalog.only
        return {"model": only.name} if only is not None else {"models": [entry.model.name for entry in self._catalog]}

    async def docs(self, request: Request, exchange: ApiExchange) -> None:
        """The API, to read and to try out in a browser."""
        exchange.respond(200, DOCS.encode(), HTML, PAGE_HEADERS)

    async def openapi(self, request: Request, exchange: ApiExchange) -> None:
        """The API, as an OpenAPI document for programs."""
        models = () if self._has_keys else tuple(entry.model.name for entry in self._catalog)
        if not self._document or models != self._documented:
            open_paths = self._open_paths if self._has_keys else None
            self._document = await asyncio.to_thread(
                lambda: orjson.dumps(document(self._routes.described(), open_paths, models))
            )
            self._documented = models
        exchange.respond(200, self._document)

    async def asset(self, request: Request, exchange: ApiExchange) -> None:
        """A file that the page of the API needs."""
        data = await asyncio.to_thread(read_asset, request.path.rpartition("/")[2])
        exchange.respond(200, data, ASSETS[request.path], (("cache-control", "max-age=86400"), *PAGE_HEADERS))

    async def to_folder(self, request: Request, exchange: ApiExchange) -> None:
        """Links on the home page are relative to the prefix with a slash."""
        name = request.path.rpartition("/")[2]
        exchange.respond(308, b"", headers=(("location", f"{name}/"),))


def read_asset(name: str) -> bytes:
    """A file of the library that has Swagger UI. The library itself, which takes long, is not imported. Raises
    HttpError 404 if it is not installed."""
    spec = find_spec(ASSETS_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        path = Path(folder) / "static" / name
        if path.is_file():
            return path.read_bytes()
    raise HttpError(404, f"{name} is not there: {ASSETS_PACKAGE} is not installed.", code="not_found")
