"""What a front needs of the tensor API, which processes without tensor models do not import."""

from __future__ import annotations

from typing import Protocol

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.openai.other_models import OtherModels, TextModels
from slipstream.router.http.http_error import ErrorForm
from slipstream.router.http.large_body import BodyPlaces
from slipstream.router.http.reader import Request
from slipstream.router.observability.endpoint_metrics import EndpointCounts


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


class EndpointApi(OtherModels, TextModels, Protocol):
    """Endpoints of OpenAI's shape over tensor models."""

    @property
    def counts(self) -> EndpointCounts: ...
    def add_to(self, routes: ApiRoutes) -> None: ...
