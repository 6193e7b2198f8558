"""How many instances a version of a tensor model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstancesStatus:
    """`count` are wanted; it `is_changing` until these serve and others are gone. `hosts` is how many serve, by host.
    `max` None: the number does not follow the demand. `latest` is what the last change was and why, "" if there was
    none."""

    model: str
    version: str
    count: int
    hosts: Mapping[str, int]
    min: int | None = None
    max: int | None = None
    is_changing: bool = False
    latest: str = ""
