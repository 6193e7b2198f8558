"""URLs of what the cluster listens at, as this machine reaches it."""

from __future__ import annotations

from urllib.parse import urlsplit

from slipstream.router.addresses import Endpoint


def here(host: str) -> str:
    """The address by which this machine reaches something that listens on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def port_of(url: str) -> int | None:
    """The port in a URL of ours; None: there is no URL."""
    return urlsplit(url).port if url else None


def url_of(scheme: str, at: Endpoint) -> str:
    host = here(at.host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{at.port}"
