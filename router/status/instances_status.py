"""How many instances a version of a tensor model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstancesStatus:
    """`count` are wanted; `hosts` is how many serve, by host. `max` None: it stays as it is. `latest` is what the last
    change was and why, "" if there was none."""

    model: str
    version: str
    count: int
    hosts: Mapping[str, int]
    min: int | None = None
    max: int | None = None
    latest: str = ""
