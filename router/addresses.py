"""Where a router listens. This module imports nothing of the router, so reading an address does not load one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a TCP port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """The endpoints for clients, for workers and for operators (None: operators use the clients' endpoint)."""

    http: Endpoint
    workers: Endpoint
    admin: Endpoint | None = None
