"""Chooses hosts for instances, so that those of one version of a model are spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """An instance that has a host. `version` says which instances are to be spread: those of one version of a model.
    `device` is its GPU; None: it has none."""

    name: str
    version: tuple[str, str]
    device: int | None
    host: str


def host_for(
    version: tuple[str, str], device: int | None, placed: Iterable[Placed], hosts: Collection[str]
) -> str | None:
    """The host with the fewest instances of this version (of these, for a GPU, with the fewest on this device); then
    the one where the device has the fewest of all versions; then the one with the fewest at all. None: there is no
    host."""
    own, on_device, total = Counter[str](), Counter[str](), Counter[str]()
    for one in placed:
        total[one.host] += 1
        if device is not None and one.device == device:
            on_device[one.host] += 1
        if one.version == version and one.device == device:
            own[one.host] += 1
    return min(hosts, key=lambda host: (own[host], on_device[host], total[host]), default=None)


def instance_to_move(placed: Iterable[Placed], hosts: Collection[str]) -> Placed | None:
    """Of the instances of one version, one that is better off on another host: its own has at least two more of them on
    such a device than another one. So an instance that is the only one never moves."""
    by_device: dict[int | None, list[Placed]] = {}
    for one in placed:
        if one.host in hosts:
            by_device.setdefault(one.device, []).append(one)
    for instances in by_device.values():
        counts = Counter(one.host for one in instances)
        fullest = max(hosts, key=lambda host: counts[host])
        if counts[fullest] - min(counts[host] for host in hosts) >= 2:
            return max((one for one in instances if one.host == fullest), key=lambda one: one.name)
    return None
