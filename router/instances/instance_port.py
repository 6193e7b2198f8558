"""Where instance hosts and instances connect."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.instance_owner import InstanceOwner, PortObserver
from slipstream.router.instances.messages import StartInstance
from slipstream.router.tensor_memory.region_pool import RegionPool


@dataclass(frozen=True, slots=True)
class InstancePortConfig:
    """`unix_path` "": no Unix socket. `token` is the cluster's worker token. `max_payload_bytes` is of one frame."""

    token: str
    unix_path: str = ""
    max_payload_bytes: int = 1 << 34


@dataclass(frozen=True, slots=True)
class HostStatus:
    """`memory_id` names the memory that hosts share; `num_instances` were started there and have not ended."""

    name: str
    node_ip: str
    memory_id: str
    num_instances: int


@dataclass(frozen=True, slots=True)
class InstanceLedger:
    """All but `num_hosts` return to zero when no model is loaded; `num_requests` and `num_lent` when none runs.
    `num_lent`: responses to calls that an instance has not released yet."""

    num_hosts: int
    num_launches: int
    num_connected: int
    num_requests: int
    num_lent: int


class InstancePort:
    """Listens on the Unix socket and on `sockets` (TCP, bound or listening; the caller keeps them over a restart)."""

    def __init__(
        self,
        config: InstancePortConfig,
        pool: RegionPool,
        observer: PortObserver,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Raises OSError if it cannot listen."""
        raise NotImplementedError

    @property
    def hosts(self) -> list[HostStatus]:
        """Those that are connected."""
        raise NotImplementedError

    @property
    def ledger(self) -> InstanceLedger:
        raise NotImplementedError

    def launch(self, start: StartInstance, owner: InstanceOwner, host: str = "") -> InstanceLink:
        """Starts an instance on this host; "": on the one with the fewest. Without such a host it waits for one.
        `InstanceOwner.connected` or `ended` follows."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Closes all connections and removes the Unix socket. Hosts and instances stay, for the next router."""
        raise NotImplementedError


def new_launch_id() -> str:
    """Unique, and fit for file names."""
    raise NotImplementedError
