"""How an instance is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from slipstream.router.instances.messages import StartInstance


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """`environment` is the whole one. `folder` is the working directory ("": the host's)."""

    argv: list[str]
    environment: dict[str, str]
    folder: str = ""


@dataclass(frozen=True, slots=True)
class InstanceContact:
    """How an instance reaches the router, and its credentials."""

    address: str
    launch: str
    secret: str = field(repr=False)
    memory_id: str


class Launcher(Protocol):
    """Makes the commands of a backend's instances. It may take long and is called on a thread. Raises ValueError or
    OSError with a sentence if an instance cannot be started."""

    def __call__(self, start: StartInstance, contact: InstanceContact) -> LaunchCommand: ...
