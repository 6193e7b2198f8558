"""Which handler serves which path."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from slipstream.router.http.errors import HttpError
from slipstream.router.http.exchange import Exchange, Handler
from slipstream.router.http.reader import Request

ItemHandler = Callable[[Request, Exchange, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ItemRoute:
    """`prefix` + an id, which may contain slashes as model names do, + `suffix`."""

    method: str
    prefix: str
    suffix: str
    handler: ItemHandler

    def item(self, path: str) -> str | None:
        """The id in `path`, None if the path is not of this route."""
        if path.startswith(self.prefix) and path.endswith(self.suffix):
            return path[len(self.prefix) : len(path) - len(self.suffix)] or None
        return None


class Routes:
    """A table of paths. Unknown ones get 404, known ones with another method 405; HEAD is served as GET."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        self._items: list[ItemRoute] = []

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Serve `path` exactly."""
        self._exact.setdefault(path, {})[method] = handler

    def add_item(self, method: str, prefix: str, suffix: str, handler: ItemHandler) -> None:
        """Serve every path between `prefix` and `suffix`; the handler gets what lies between."""
        self._items.append(ItemRoute(method, prefix, suffix, handler))

    def __call__(self, request: Request, exchange: Exchange) -> Awaitable[None]:
        """What the handler of the request's path does. Raises HttpError 404 or 405."""
        method = "GET" if request.method == "HEAD" else request.method
        methods = self._exact.get(request.path)
        if methods is not None:
            handler = methods.get(method)
            if handler is None:
                raise self._not_allowed(request, sorted(methods))
            return handler(request, exchange)
        allowed = []
        for route in self._items:
            item = route.item(request.path)
            if item is not None:
                if route.method == method:
                    return route.handler(request, exchange, item)
                allowed.append(route.method)
        if allowed:
            raise self._not_allowed(request, allowed)
        raise HttpError(404, f"There is nothing at {request.path}.{self._hint(request.path)}", code="not_found")

    def _hint(self, path: str) -> str:
        """What may have been meant, or, for an endpoint of OpenAI's that is not served, those that are."""
        close = difflib.get_close_matches(path, self._exact, n=1, cutoff=0.8)  # `/v1` forgotten, a slash too many
        if close:
            return f" Did you mean {close[0]}?"
        served = sorted(known for known in self._exact if known.startswith("/v1/"))
        return f" Under /v1 there are {', '.join(served)}." if served and path.startswith("/v1") else ""

    @staticmethod
    def _not_allowed(request: Request, allowed: list[str]) -> HttpError:
        if "GET" in allowed:
            allowed = [*allowed, "HEAD"]
        return HttpError(
            405,
            f"{request.method} is not allowed on {request.path}, only {' and '.join(allowed)}.",
            code="method_not_allowed",
            headers=(("allow", ", ".join(allowed)),),
        )
