"""Which handler serves which path."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from pydantic import BaseModel

from slipstream.router.http.exchange import Exchange, Handler
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.observer import C
from slipstream.router.http.reader import Request

ItemHandler = Callable[[Request, Exchange[C], str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route as it is described to people: `{id}` in `path` stands for any text. `body` is what the request's body is
    parsed into, `query` are the names that its query may have."""

    method: str
    path: str
    handler: Callable[..., Awaitable[None]]
    body: type[BaseModel] | None
    query: tuple[str, ...]

    @property
    def path_fields(self) -> tuple[str, ...]:
        return ("id",) if "{id}" in self.path else ()


@dataclass(frozen=True, slots=True)
class ItemRoute(Generic[C]):
    """`prefix` + an id, which may contain slashes as model names do, + `suffix`."""

    method: str
    prefix: str
    suffix: str
    handler: ItemHandler[C]

    def item(self, path: str) -> str | None:
        """The id in `path`, None if the path is not of this route."""
        if path.startswith(self.prefix) and path.endswith(self.suffix):
            return path[len(self.prefix) : len(path) - len(self.suffix)] or None
        return None


class Routes(Generic[C]):
    """A table of paths. Unknown ones get 404, known ones with another method 405; HEAD is served as GET, and OPTIONS
    answers with the methods that a path has."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Handler[C]]] = {}
        self._items: list[ItemRoute[C]] = []
        self._described: list[Route] = []

    def add(
        self,
        method: str,
        path: str,
        handler: Handler[C],
        *,
        body: type[BaseModel] | None = None,
        query: tuple[str, ...] = (),
        is_described: bool = True,
    ) -> None:
        """Serve `path` exactly. What is described (see `Route`) is shown to people."""
        self._exact.setdefault(path, {})[method] = handler
        if is_described:
            self._described.append(Route(method, path, handler, body, query))

    def add_item(
        self,
        method: str,
        prefix: str,
        suffix: str,
        handler: ItemHandler[C],
        *,
        body: type[BaseModel] | None = None,
        query: tuple[str, ...] = (),
        is_described: bool = True,
    ) -> None:
        """Serve every path between `prefix` and `suffix`; the handler gets what lies between."""
        self._items.append(ItemRoute(method, prefix, suffix, handler))
        if is_described:
            self._described.append(Route(method, f"{prefix}{{id}}{suffix}", handler, body, query))

    def described(self) -> Sequence[Route]:
        """The routes that are shown to people."""
        return self._described

    def has(self, path: str) -> bool:
        return bool(self._methods_of(path))

    def __call__(self, request: Request, exchange: Exchange[C]) -> Awaitable[None]:
        """What the handler of the request's path does. Raises HttpError 404 or 405."""
        if request.method == "OPTIONS":
            return self._options(request, exchange)
        method = "GET" if request.method == "HEAD" else request.method
        methods = self._exact.get(request.path)
        if methods is not None:
            handler = methods.get(method)
            if handler is None:
                raise self._not_allowed(request)
            return handler(request, exchange)
        is_known = False
        for route in self._items:
            item = route.item(request.path)
            if item is not None:
                if route.method == method:
                    return route.handler(request, exchange, item)
                is_known = True
        raise self._not_allowed(request) if is_known else self._not_found(request)

    async def _options(self, request: Request, exchange: Exchange[C]) -> None:
        if request.path == "*":  # the server as a whole (RFC 9110, 9.3.7)
            allowed = [*{method: None for methods in self._exact.values() for method in methods}]
        else:
            allowed = self._methods_of(request.path)
        if not allowed:
            raise self._not_found(request)
        exchange.respond(204, b"", headers=(("allow", ", ".join(with_head_and_options(allowed))),))

    def _methods_of(self, path: str) -> list[str]:
        """Those that are served at a path; none: it is unknown."""
        methods = self._exact.get(path)
        if methods is not None:
            return sorted(methods)
        return list(dict.fromkeys(route.method for route in self._items if route.item(path) is not None))

    def _not_found(self, request: Request) -> HttpError:
        return HttpError(404, f"There is nothing at {request.path}.{self._hint(request.path)}", code="not_found")

    def _hint(self, path: str) -> str:
        """What may have been meant, or, for an endpoint of OpenAI's that is not served, those that are."""
        close = difflib.get_close_matches(path, self._exact, n=1, cutoff=0.8)  # `/v1` forgotten, a slash too many
        if close:
            return f" Did you mean {close[0]}?"
        served = sorted(known for known in self._exact if known.startswith("/v1/"))
        return f" Under /v1 there are {', '.join(served)}." if served and path.startswith("/v1") else ""

    def _not_allowed(self, request: Request) -> HttpError:
        allowed = with_head_and_options(self._methods_of(request.path))
        return HttpError(
            405,
            f"{request.method} is not allowed on {request.path}, only {' and '.join(allowed[:-1])}.",
            code="method_not_allowed",
            headers=(("allow", ", ".join(allowed)),),
        )


def with_head_and_options(methods: list[str]) -> list[str]:
    """What an Allow header names, OPTIONS last."""
    return [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
