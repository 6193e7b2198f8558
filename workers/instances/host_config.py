"""The settings of an instance host."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.tls.link_tls import LinkTlsConfig


@dataclass(frozen=True, slots=True)
class InstanceHostConfig:
    """`router` is the router's instance port: `unix:PATH` or `HOST:PORT`. `name` is unique in the cluster. `logs` is
    the folder for the output of instances, a file for each name and version ("": it is the host's). `cache` is where
    packed environments are unpacked ("": the user's cache). `python` is the interpreter of models that bring none along
    ("": this one). `node_ip` is what the router shows of it. `router_tls` is for `HOST:PORT`, and not for a
    Unix socket."""

    router: str
    token: str = field(default="", repr=False)
    name: str = "instances"
    node_ip: str = ""
    logs: str = ""
    cache: str = ""
    python: str = ""
    router_tls: LinkTlsConfig = field(default_factory=LinkTlsConfig)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if not self.token:
            raise ValueError("token must not be empty")
        router_address(self.router)


@dataclass(frozen=True, slots=True)
class RouterAddress:
    """A Unix socket's path, or a TCP endpoint."""

    path: str = ""
    host: str = ""
    port: int = 0


def router_address(text: str) -> RouterAddress:
    """`unix:PATH` or `HOST:PORT`. Raises ValueError."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if path:
            return RouterAddress(path=path)
    else:
        host, _, port = text.rpartition(":")
        if host and port.isdecimal() and 0 < int(port) < 65536:
            return RouterAddress(host=host.strip("[]"), port=int(port))
    raise ValueError(f"router must be unix:PATH or HOST:PORT, got {text!r}")
