"""What the router has to know of a model: sent to its process at the start, and for models that are added later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.cluster.config.config_changes import live_dispatch
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.model_files.manifest import Manifest


@dataclass(frozen=True, slots=True)
class RoutedText:
    """The tokenizer, chat template and sampling defaults of a version that has others than its model."""

    version: str
    served: ServedModelConfig
    manifests: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model as the next incarnation of the router is to serve it. `manifests` are those of the versions that are
    served: the router reads no other files. `texts` are those of versions that do not have the model's own."""

    served: ServedModelConfig
    dispatch: DispatchConfig
    manifests: tuple[Manifest, ...] = ()
    texts: tuple[RoutedText, ...] = ()
    weight: float = 1.0  # where models divide the memory of a host

    @classmethod
    def of(cls, deployment: Deployment) -> RoutedModel:
        config = deployment.config
        manifests = tuple(filter(None, [deployment.manifest]))
        return cls(config.model, config.router.dispatch, manifests, weight=deployment.weight)

    def with_text(self, text: RoutedText) -> RoutedModel:
        """A version has a text of its own from now on."""
        return replace(self.without_text(text.version), texts=(*self.texts, text))

    def without_text(self, version: str) -> RoutedModel:
        return replace(self, texts=tuple(text for text in self.texts if text.version != version))

    def adopting(self, text: RoutedText) -> RoutedModel:
        """The text of a version is that of the model from now on, under the model's names."""
        served = replace(text.served, name=self.served.name, aliases=self.served.aliases)
        return replace(self.without_text(text.version), served=served, manifests=text.manifests)

    def with_aliases(self, aliases: Sequence[str]) -> RoutedModel:
        return replace(self, served=replace(self.served, aliases=tuple(aliases)))

    def text(self, version: str) -> RoutedText | None:
        return next((text for text in self.texts if text.version == version), None)

    def with_split(self, split: dict[str, float] | None) -> RoutedModel:
        versions = replace(self.dispatch.versions, split=split)
        return replace(self, dispatch=replace(self.dispatch, versions=versions))

    def following(self, served: ServedModelConfig, dispatch: DispatchConfig) -> RoutedModel:
        """With another configuration of the model, and those settings of the dispatcher that can change while it
        runs."""
        return replace(self, served=served, dispatch=live_dispatch(self.dispatch, dispatch))
