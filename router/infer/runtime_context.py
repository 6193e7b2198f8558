"""What the versions that instances execute need of the rest of the router."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.infer.model_calls import CalledModels
from slipstream.router.infer.requests.version_dispatch import DispatchOptions
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.instance_owner import InstanceOwner
from slipstream.router.instances.messages import ControlCall, StartInstance


class InstanceLauncher(Protocol):
    """What starts processes: the instance port."""

    @property
    def host_names(self) -> Collection[str]:
        """Of those on which it can start them now."""

    def launch(self, start: StartInstance, owner: InstanceOwner, host: str = "") -> InstanceLink: ...


class Controls(Protocol):
    """What a model may ask of the repository."""

    def control(self, call: ControlCall, link: InstanceLink) -> None: ...


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """What all versions have in common. `stop_grace_s` is how long a model may take to finalize. `backend_config` has
    settings by backend; those of "" are for all. `counts` are how many instances models have, by their names, where
    that is not as their configurations say."""

    launcher: InstanceLauncher
    calls: CalledModels
    controls: Controls
    options: DispatchOptions
    stop_grace_s: float = 30.0
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    counts: Mapping[str, InstanceCountsConfig] = field(default_factory=dict)

    def settings_of(self, backend: str) -> dict[str, str]:
        """Those of `backend_config` for a backend, and for all."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}
