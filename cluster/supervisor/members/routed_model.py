"""What the router has to know of a model: sent to its process at the start, and for models that are added later."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.cluster.config.config_changes import live_dispatch
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.model_files.manifest import Manifest


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model as the next incarnation of the router is to serve it. `manifests` are those of the versions that are
    served: the router reads no other files."""

    served: ServedModelConfig
    dispatch: DispatchConfig
    manifests: tuple[Manifest, ...] = ()

    @classmethod
    def of(cls, deployment: Deployment) -> RoutedModel:
        config = deployment.config
        return cls(config.model, config.router.dispatch, tuple(filter(None, [deployment.manifest])))

    def with_split(self, split: dict[str, float] | None) -> RoutedModel:
        versions = replace(self.dispatch.versions, split=split)
        return replace(self, dispatch=replace(self.dispatch, versions=versions))

    def following(self, served: ServedModelConfig, dispatch: DispatchConfig) -> RoutedModel:
        """With another configuration of the model, and those settings of the dispatcher that can change while it
        runs."""
        return replace(self, served=served, dispatch=live_dispatch(self.dispatch, dispatch))
