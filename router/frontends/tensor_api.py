"""What a front needs of the tensor API, which processes without tensor models do not import."""

from __future__ import annotations

from typing import Protocol

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.http.http_error import ErrorForm
from slipstream.router.http.large_body import BodyPlaces
from slipstream.router.http.reader import Request


class TensorApi(Protocol):
    """`open_paths` need no key."""

    @property
    def open_paths(self) -> frozenset[str]: ...
    @property
    def error_form(self) -> ErrorForm: ...
    @property
    def body_places(self) -> BodyPlaces | None: ...
    def serves(self, path: str) -> bool: ...
    async def __call__(self, request: Request, exchange: ApiExchange) -> None: ...
