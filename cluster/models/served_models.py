"""The configuration as it is served now: that of the start, with what has been changed of its models since."""

from __future__ import annotations

from dataclasses import replace

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ModelEntry
from slipstream.cluster.config.served_config import as_plain
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig


class ServedModels:
    """Keeps the state's `served` up to date, with which the next driver begins. Changes raise ValueError if two models
    would have a name in common."""

    def __init__(self, config: ClusterConfig, state: ClusterState) -> None:
        self.config = config
        self._state = state
        self._began_alone = not config.models

    def entry(self, name: str) -> ModelEntry:
        """Raises KeyError."""
        for entry in self.config.entries():
            if entry.name == name:
                return entry
        raise KeyError(name)

    def add(self, entry: ModelEntry) -> None:
        self._take(self.config.with_models([*self.config.entries(), entry]))

    def remove(self, name: str) -> None:
        """`name` is not that of the only model. One that is alone again, as at the start, has the form of that."""
        left = [entry for entry in self.config.entries() if entry.name != name]
        if self._began_alone and len(left) == 1:
            self._take(self.config.of_model(left[0].name))
        elif len(left) < len(self.config.entries()):
            self._take(self.config.with_models(left))

    def set_aliases(self, name: str, aliases: tuple[str, ...]) -> None:
        if self.config.models:
            self._exchange(replace(self.entry(name), aliases=aliases))
        else:
            self._take(replace(self.config, model=replace(self.config.model, aliases=aliases)))

    def update(self, name: str, alone: ClusterConfig) -> None:
        """Takes over what an update has changed of a model. `alone` is its new configuration."""
        if not self.config.models:
            self._take(replace(alone, repository=self.config.repository))  # of which no update changes anything
            return
        before = self.entry(name)
        slo = alone.router.dispatch.slo
        keeps_slo = before.slo is None and slo == self.config.router.dispatch.slo
        (served,) = alone.entries()
        limits = replace(served, weight=before.weight, min_workers=before.min_workers)
        self._exchange(replace(limits, slo=None if keeps_slo else slo))

    def set_tensor_versions(self, model: str, versions: TensorVersionsConfig) -> None:
        """How the requests to a model of the repository are divided between its versions."""
        repository = self.config.repository
        self._take(
            replace(self.config, repository=replace(repository, versions={**repository.versions, model: versions}))
        )

    def set_instance_counts(self, model: str, counts: InstanceCountsConfig) -> None:
        """How many instances a model of the repository has."""
        repository = self.config.repository
        instances = {**repository.instances, model: counts}
        self._take(replace(self.config, repository=replace(repository, instances=instances)))

    def _exchange(self, entry: ModelEntry) -> None:
        entries = [entry if one.name == entry.name else one for one in self.config.entries()]
        self._take(self.config.with_models(entries))

    def _take(self, config: ClusterConfig) -> None:
        self.config = config
        self._state.served = as_plain(config)
