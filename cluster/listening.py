"""Where the processes on the driver's machine listen, and whether they can there."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from slipstream.cluster.config import ClusterConfig

LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")  # with underscores, which Docker's names have
MAX_NAME_CHARS = 253  # RFC 1035


class Listener(NamedTuple):
    """`port` 0: a free one."""

    section: str  # of the configuration
    host: str
    port: int


def listeners(config: ClusterConfig) -> Iterator[Listener]:
    """All but those of workers."""
    router, operator = config.router, config.operator
    yield Listener("router.http", router.http.host, router.http.port)
    yield Listener("router", router.worker_host, router.worker_port)
    if router.admin.port is not None:
        yield Listener("router.admin", router.admin.host, router.admin.port)
    if operator.port is not None:
        yield Listener("operator", operator.host, operator.port)


def why_not_there(listener: Listener) -> str | None:
    """One sentence that begins with the key, if this machine cannot listen there now."""
    section, host, port = listener
    prefix = "worker_" if section == "router" else ""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            key = f"{section}.{prefix}port"
            return f"{key}: port {port} at {host} is in use by another program; choose another one, or 0 for any"
        if error.errno == errno.EACCES:
            return f"{section}.{prefix}port: port {port} at {host} cannot be used: {error.strerror}"
        return f"{section}.{prefix}host: nothing can listen at {host} on this machine: {error.strerror or error}"
    return None


def is_host(text: str) -> bool:
    """Whether it has the form of an IP address or of a host's name. A name whose last part is a number is an address
    that went wrong."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        return len(text) <= MAX_NAME_CHARS and all(map(LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    return True
