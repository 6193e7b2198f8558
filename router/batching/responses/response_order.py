"""Responses in the order of their requests (`preserve_ordering`)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

R = TypeVar("R")  # a request
A = TypeVar("A")  # a response of it


@dataclass(slots=True)
class _Held(Generic[A]):
    responses: list[A] = field(default_factory=list)
    is_complete: bool = False


class ResponseOrder(Generic[R, A]):
    """Of one model, or of one instance for the oldest sequence strategy. Each request is expected when it is queued or
    found in the cache. What the first one gets may leave at once; what others get is held until those before them are
    complete. Tenants do not wait for each other: there is one order for each."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, OrderedDict[R, _Held[A]]] = {}

    @property
    def num_expected(self) -> int:
        return sum(len(expected) for expected in self._by_tenant.values())

    def expect(self, request: R, tenant: str = "") -> None:
        self._by_tenant.setdefault(tenant, OrderedDict())[request] = _Held()

    def respond(self, request: R, response: A, *, is_final: bool, tenant: str = "") -> list[tuple[R, A]]:
        """Returns what may leave now, with the requests that it belongs to."""
        held = self._by_tenant[tenant][request]
        held.responses.append(response)
        held.is_complete = is_final
        return self._leaving(tenant)

    def drop(self, request: R, tenant: str = "") -> list[tuple[R, A]]:
        """The request has ended otherwise: it failed, or was rejected or cancelled. Its own responses that were held
        are returned first, then what may leave because of it."""
        held = self._by_tenant[tenant].pop(request)
        return [(request, response) for response in held.responses] + self._leaving(tenant)

    def _leaving(self, tenant: str) -> list[tuple[R, A]]:
        expected = self._by_tenant[tenant]
        leaving: list[tuple[R, A]] = []
        while expected:
            request, held = next(iter(expected.items()))
            leaving += [(request, response) for response in held.responses]
            held.responses.clear()
            if not held.is_complete:
                break
            del expected[request]
        if not expected:
            del self._by_tenant[tenant]
        return leaving
