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
class RepositoryAddresses:
    """Where a router with a repository listens beside the endpoint for HTTP: for gRPC and for Triton's metrics (None:
    not at all), and for instances: at a Unix socket for those on its host (None: they connect as others do), and at an
    endpoint for others."""

    instances_path: str | None
    instances: Endpoint
    grpc: Endpoint | None = None
    metrics: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class Addresses:
    """The endpoints for clients, for workers and for operators (None: operators use the clients' endpoint)."""

    http: Endpoint
    workers: Endpoint
    admin: Endpoint | None = None
    repository: RepositoryAddresses | None = None
