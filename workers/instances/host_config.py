"""The settings of an instance host."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class InstanceHostConfig:
    """`router` is the router's instance port: `unix:PATH` or `HOST:PORT`. `logs` is the folder for the output of
    instances ("": that of the host). `cache` is where packed environments are unpacked ("": the user's cache). `python`
    is the interpreter of models that name none ("": this one). `node_ip` "": the address by which it reaches the
    router."""

    router: str
    token: str = field(default="", repr=False)
    name: str = "instances"
    node_ip: str = ""
    logs: str = ""
    cache: str = ""
    python: str = ""
