"""URLs of what the cluster listens at, as this machine reaches it."""

from __future__ import annotations

from urllib.parse import urlsplit

from slipstream.router.process.addresses import Endpoint
from slipstream.router.process.listening import here


def port_of(url: str) -> int | None:
    """The port in a URL of ours; None: there is no URL."""
    return urlsplit(url).port if url else None


def url_of(scheme: str, at: Endpoint) -> str:
    return f"{scheme}://{Endpoint(here(at.host), at.port)}"
