"""Where a router listens. This module imports nothing of the router, so reading an address does not load one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        """`HOST:PORT` as URLs have it: an IPv6 address stands in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The endpoints for clients, for workers and for operators (None: operators use the clients' endpoint)."""

    http: Endpoint
    workers: Endpoint
    admin: Endpoint | None = None
