"""Where a router listens. Without imports: who only wants to know need not load a router."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a TCP port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where clients and where workers connect to, and where operators ask: None if that is where clients do."""

    http: Endpoint
    workers: Endpoint
    admin: Endpoint | None = None
