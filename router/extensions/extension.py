"""What an extension is and what it gets. These names are kept from release to release (docs/how-to/extensions.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

JSON = "application/json"


class CallRefusedError(Exception):
    """Raised in `before` or in a route: the client gets this status, with an error in the form of its API."""

    def __init__(self, status: int, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


class ExtensionReply(NamedTuple):
    """A whole response."""

    body: bytes
    status: int = 200
    content_type: str = JSON


@dataclass(slots=True)
class ExtensionCall:
    """A request. `path` is percent-decoded and without a prefix, names of `headers` are lower-case. `tenant` and
    `key_name` are "" without keys. `body` may be replaced in `before`; it is empty where it is too large to be held in
    one piece (tensors). `ask` sends a JSON body to another path of this router, for the same caller, and returns its
    whole answer."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    request_id: str
    tenant: str
    key_name: str
    ask: Callable[[str, Any], Awaitable[ExtensionReply]]


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A request that is over. `status` is 499 if its client left. `seconds` counts from just before the
    first `before`."""

    call: ExtensionCall
    status: int
    seconds: float


class ExtensionRoute(NamedTuple):
    """A path of an extension. It needs a key where the router's own paths do."""

    method: str
    path: str
    handler: Callable[[ExtensionCall], Awaitable[ExtensionReply]]


class Extension:
    """Made once in each process that faces clients, with its settings. A method that is not overridden costs nothing.

    All methods run on the event loop: none may block. An exception other than `CallRefusedError` in `before` or a route
    is a 500 and is logged; one in `after` is logged.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises ValueError for settings that cannot be."""

    def routes(self) -> Iterable[ExtensionRoute]:
        """Further paths. None of the router's own can be replaced."""
        return ()

    async def before(self, call: ExtensionCall) -> None:
        """Called when the caller is known, before the request is read. It may replace `call.body`. Raise
        CallRefusedError to refuse the request; later extensions then do not see it."""

    def after(self, ended: EndedCall) -> None:
        """Called once for each request that this extension's `before` has let pass, when the request is over: answered,
        failed, refused by a later extension, or left by its client."""
