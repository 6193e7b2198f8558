"""The network interface over which a group's ranks compute together."""

from __future__ import annotations

import os

import psutil

LOOPBACK = "lo"
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def use_interface_of(host: str) -> None:
    """Has the collectives of this process listen at the interface with this address. By default gloo takes the address
    that the host's own name resolves to, which on many hosts is a loopback that no other host reaches. What the
    environment says already stays."""
    name = _interface_of(host)
    if name is not None and name != LOOPBACK:
        for variable in VARIABLES:
            os.environ.setdefault(variable, name)


def _interface_of(host: str) -> str | None:
    """None: no interface has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] == host for address in addresses):
            return name
    return None
