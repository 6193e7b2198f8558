"""The endpoints of a configuration by kind and name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipstream.router.access.caller import Caller
from slipstream.router.config.endpoints_config import AnyEndpoint, EndpointKind, EndpointsConfig
from slipstream.router.http.http_error import HttpError

MAX_NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class NamedEndpoint:
    """`config` is of the class of its kind."""

    kind: EndpointKind
    name: str
    config: AnyEndpoint

    @property
    def model(self) -> str:
        """The tensor model's name."""
        return self.config.model or self.name

    @property
    def title(self) -> str:
        """As errors name it."""
        return f"Endpoint {self.name!r} ({self.kind})"


class EndpointTable:
    """What clients may ask for."""

    def __init__(self, config: EndpointsConfig) -> None:
        self._by_kind: dict[EndpointKind, dict[str, NamedEndpoint]] = {}
        self._created_s = int(time.time())
        for kind, endpoints in config.of_kinds().items():
            names = self._by_kind.setdefault(kind, {})
            for name, endpoint in endpoints.items():
                named = NamedEndpoint(kind, name, endpoint)
                names.update(dict.fromkeys((name, *endpoint.aliases), named))

    def get(self, kind: EndpointKind, asked: str) -> NamedEndpoint | None:
        return self._by_kind[kind].get(asked)

    def find(self, kind: EndpointKind, asked: str, caller: Caller) -> NamedEndpoint:
        """Raises HttpError: 404 for an unknown name, 403 if the key does not allow it."""
        found = self._by_kind[kind].get(asked)
        if found is None:
            shown = ", ".join(map(repr, self.names(kind, caller)[:MAX_NAMES_SHOWN])) or "none that this API key may use"
            message = f"The model {asked!r} does not exist for {kind}; this server has {shown}."
            raise HttpError(404, message, param="model", code="model_not_found")
        if caller.key is not None:
            caller.check(found.name, caller.key.max_priority)
        return found

    def names(self, kind: EndpointKind, caller: Caller) -> list[str]:
        """Those that the caller may use."""
        return [name for name, one in self._by_kind[kind].items() if caller.may_use(one.name)]

    def __iter__(self) -> Iterator[NamedEndpoint]:
        """Each endpoint once."""
        for names in self._by_kind.values():
            for asked, endpoint in names.items():
                if asked == endpoint.name:
                    yield endpoint

    def cards(self, caller: Caller) -> list[dict[str, Any]]:
        """What `/v1/models` shows, without whether they are served: one card for each name and alias."""
        cards: dict[str, dict[str, Any]] = {}
        for kind, names in self._by_kind.items():
            for asked, endpoint in names.items():
                if not caller.may_use(endpoint.name):
                    continue
                card = cards.setdefault(asked, self._card(asked, endpoint))
                card["kinds"].append(kind)
        return list(cards.values())

    def _card(self, asked: str, endpoint: NamedEndpoint) -> dict[str, Any]:
        return {
            "id": asked,
            "object": "model",
            "created": self._created_s,
            "owned_by": "slipstream",
            "root": endpoint.name,
            "parent": endpoint.name if asked != endpoint.name else None,
            "max_model_len": None,
            "state": "loading",
            "versions": [],
            "kinds": [],
        }
