"""OpenAI's endpoints that list models, with the fields that vLLM adds, the state of each and its versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from slipstream.router.access.caller import Caller
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.generation.model_lookup import ModelLookup, ModelStatus
from slipstream.router.api.openai.other_models import OtherModels
from slipstream.router.catalog.catalog import Catalog, CatalogEntry
from slipstream.router.dispatch.queue.work_queue import MAX_PRIORITY
from slipstream.router.http.reader import Request


class ModelPages:
    """The models that the caller's key may use."""

    def __init__(self, catalog: Catalog, status: ModelStatus, lookup: ModelLookup) -> None:
        self._catalog = catalog
        self._status = status
        self._lookup = lookup
        self.others: OtherModels | None = None

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("GET", "/v1/models", self.models)
        routes.add_item("GET", "/v1/models/", "", self.model)

    async def models(self, request: Request, exchange: ApiExchange) -> None:
        """The models that are served, and their aliases; where a model has several versions, also each of those."""
        cards = self.cards(exchange.context.caller)
        exchange.respond(200, orjson.dumps({"object": "list", "data": cards}))

    async def model(self, request: Request, exchange: ApiExchange, name: str) -> None:
        """One model, version or alias."""
        exchange.respond(200, orjson.dumps(self.card_of(name, exchange.context.caller)))

    def cards(self, caller: Caller) -> list[dict[str, Any]]:
        """All that the caller may use, in OpenAI's form."""
        cards = [
            self._card(entry, name)
            for entry in self._catalog
            if caller.may_use(entry.model.name)
            for name in self._names(entry)
        ]
        if self.others is None:
            return cards
        known = {card["id"] for card in cards}
        return [*cards, *(card for card in self.others.cards(caller) if card["id"] not in known)]

    def card_of(self, name: str, caller: Caller) -> dict[str, Any]:
        """That of one name. Raises HttpError."""
        if self.others is not None and name not in self._catalog:
            card = next((card for card in self.others.cards(caller) if card["id"] == name), None)
            if card is not None:
                return card
        model = self._lookup.of(name, caller, MAX_PRIORITY).model
        return self._card(self._catalog.entry(model.name), name)

    def _names(self, entry: CatalogEntry) -> Iterator[str]:
        name = entry.model.name
        versions = self._status.versions_of(name)
        yield name
        if len(versions) > 1:
            yield from (f"{name}@{version}" for version in versions)
        yield from entry.model.aliases

    def _card(self, entry: CatalogEntry, known_as: str) -> dict[str, Any]:
        """`root` is the model that an id stands for, and `parent` as well, unless the id is the model's own name: what
        vLLM does for an adapter and its base model."""
        name = entry.model.name
        versions = self._status.versions_of(name)
        return {
            "id": known_as,
            "object": "model",
            "created": entry.created_s,
            "owned_by": "slipstream",
            "root": name,
            "parent": name if known_as != name else None,
            "max_model_len": self._status.max_model_len_of(name),
            "state": entry.state(bool(versions)),
            "versions": [version for version in versions if version],
        }
